"""The studies: a row of STUDIES for each experiment.

    python -m benchmarks.studies activations

docs/results.md has the results, benchmarks/README.md the settings.
"""

import dataclasses
import functools
import math
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping

import keras
import numpy as np

from benchmarks import study_images
from benchmarks.flops import forward_flops
from benchmarks.study import (
    CHOICE,
    DIGIT_SPLITS,
    REPORT,
    Arm,
    Place,
    Study,
    Trained,
    Trial,
    main,
    train_once,
)
from keras_vit import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.models.features import without_head
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.evaluation.probing import ProbeChoices, extract_features, few_shot
from trainers.models.factory import choose_trained
from trainers.models.resnets import build_bit_resnet
from trainers.optim.optimizers import make_optimizer
from trainers.optim.schedules import WarmupSchedule
from trainers.recipes.baselines import BitSize
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.train import prepare
from trainers.training.flops import TRAINING_PASSES
from trainers.training.memory import estimate_memory

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
ACCURACY = "test accuracy (%)"


def pretrained(recipe: Recipe, folder: pathlib.Path) -> str:
    """Return the path of the model of a recipe, trained if need be."""
    path = folder / "model.keras"
    if not path.exists():
        keras.backend.clear_session()
        recipe = dataclasses.replace(recipe, peak_tflops=1.0)
        prepare(recipe, str(folder)).train()
    return str(path)


# Moved digits: shape, number of images, compute.

MOVED = {
    "recipe": dataclasses.replace(
        RECIPES["digits"],
        dataset=study_images.MovedDigits.name,
        image_size=study_images.MOVED_SIDE,
        augment="",
        label_smoothing=0.0,
        batch_size=32,
    ),
    "splits": {
        CHOICE: {"eval_split": "validation"},
        REPORT: {"eval_split": "test"},
    },
    "seeds": 3,
}
HEAD_SIZE = 16
BASE = ViTConfig(
    depth=2,
    width=32,
    mlp_dim=64,
    num_heads=32 // HEAD_SIZE,
    patch_size=4,
    image_size=study_images.MOVED_SIDE,
    channels=1,
    num_classes=10,
)
SCALED = {
    "depth": [{"depth": 4}, {"depth": 8}],
    "width": [{"width": 64}, {"width": 128}],
    "MLP": [{"mlp_dim": 128}, {"mlp_dim": 256}],
    "patch": [{"patch_size": 12}, {"patch_size": 6}, {"patch_size": 2}],
    "all": [
        {"depth": 1, "width": 16, "mlp_dim": 32, "patch_size": 6},
        {"depth": 4, "width": 64, "mlp_dim": 128, "patch_size": 2},
    ],
}
SHAPES = {
    "base": BASE,
    **{
        # Such as "depth 4" or "all 4, 64, 128, 2"; heads have the same size.
        f"{size} {', '.join(map(str, changes.values()))}": dataclasses.replace(
            BASE,
            **changes,
            num_heads=changes.get("width", BASE.width) // HEAD_SIZE,
        )
        for size, all_changes in SCALED.items()
        for changes in all_changes
    },
}


def build_shape(config: ViTConfig, recipe, dataset) -> VisionTransformer:
    """Return a new model of a configuration."""
    return VisionTransformer(config)


def relative_compute(arm: str) -> float:
    """Return the FLOPs of a forward pass, relative to those of the base."""
    return forward_flops(SHAPES[arm]) / forward_flops(BASE)


def place_shape(trial: Trial):
    """Yield accuracy and loss over compute, with a curve for each size."""
    sizes = SCALED if trial.arm == "base" else [trial.arm.split()[0]]
    for size in sizes:
        x = relative_compute(trial.arm)
        yield ACCURACY, size, x, 100 * trial.accuracy
        yield "loss on the test images", size, x, trial.loss


def build_vit(
    recipe: Recipe, dataset: ImageDataset, *, depth: int, width: int, **more
) -> VisionTransformer:
    """Return a new ViT of 4x4 patches, or a hybrid with as many tokens."""
    config = ViTConfig(
        **{"patch_size": 4, **more},
        depth=depth,
        width=width,
        mlp_dim=4 * width,
        num_heads=width // HEAD_SIZE,
        image_size=study_images.MOVED_SIDE,
        channels=dataset.channels,
        num_classes=len(dataset.class_names),
    )
    return VisionTransformer(config)


def build_resnet(
    recipe: Recipe, dataset: ImageDataset, *, width: int
) -> keras.Model:
    """Return a new BiT ResNet with three stages of one unit."""
    return build_bit_resnet(
        BitSize((1, 1, 1), width / 64, use_small_root=True),
        image_size=study_images.MOVED_SIDE,
        channels=dataset.channels,
        num_classes=len(dataset.class_names),
    )


# Family -> size -> a function of the recipe and the data set. Models of one
# size need about the same arithmetic. A hybrid begins with the 7x7 convolution
# and the pooling of a ResNet, whose cells are its tokens.
build_hybrid = functools.partial(build_vit, stem_stages=(), patch_size=1)
FAMILIES = {
    "ViT": {
        "small": functools.partial(build_vit, depth=2, width=32),
        "medium": functools.partial(build_vit, depth=3, width=48),
        "large": functools.partial(build_vit, depth=4, width=64),
    },
    "ResNet": {
        "small": functools.partial(build_resnet, width=4),
        "medium": functools.partial(build_resnet, width=8),
        "large": functools.partial(build_resnet, width=12),
    },
    "hybrid": {
        "small": functools.partial(build_hybrid, depth=1, width=32),
        "medium": functools.partial(build_hybrid, depth=2, width=48),
        "large": functools.partial(build_hybrid, depth=3, width=64),
    },
}
COMPARED = {
    "ViT, small": FAMILIES["ViT"]["small"],
    "ViT, medium": FAMILIES["ViT"]["medium"],
    "ResNet": FAMILIES["ResNet"]["medium"],
}
# The learning rate is chosen with the most images.
SUBSETS = (10_000, 3_000, 1_000, 300, 100)
SHOTS = 10


def measure_few_shot(trained: Trained) -> dict:
    """Return the accuracy of linear classifiers fitted to few images.

    These have other handwritten digits than those that the model learned.
    """
    dataset = dataclasses.replace(
        trained.trainer.dataset, train_split="validation", eval_split="test"
    )
    features = extract_features(without_head(trained.model), dataset)
    [accuracies] = few_shot(features, ProbeChoices(shots=(SHOTS,))).values()
    return {"few_shot": statistics.mean(accuracies)}


def place_subset(trial: Trial):
    """Yield both accuracies over the number of images."""
    model, _, text = trial.arm.removesuffix(" images").rpartition(", ")
    x = int(text.replace(",", ""))
    yield ACCURACY, model, x, 100 * trial.accuracy
    yield f"{SHOTS}-shot accuracy (%)", model, x, 100 * trial.more["few_shot"]


# The learning rates of a family are --rates times this.
RATE_FACTORS = {"ViT": 1.0, "ResNet": 3.0, "hybrid": 1.0}
# Size and length of the trainings of a family, the length as a multiple of
# --updates. The learning rate of all is chosen with the first, medium one.
TRAININGS = (
    ("medium", 1),
    ("small", 1),
    ("small", 3),
    ("medium", 3),
    ("large", 2),
)


def count_training(trained: Trained) -> dict:
    """Return the FLOPs of all updates of a run."""
    trainer = trained.trainer
    images = trainer.recipe.batch_size * trainer.total_steps
    return {"flops": float(TRAINING_PASSES * trainer.flops_per_image * images)}


def place_compute(trial: Trial):
    """Yield the error over the FLOPs, with a curve for each family."""
    family = trial.arm.split(",")[0]
    error = 100 * (1 - trial.accuracy)
    yield "test error (%)", family, trial.more["flops"], error


def fit_power_law(errors: Mapping[float, list[float]]) -> tuple:
    """Fit error = scale * compute ** -exponent to the means of the seeds.

    By least squares of the logarithms; the margin has a confidence of 95 %,
    from the distances of the points to the law and the quantile of Student's t
    distribution for as many points. There is no constant term for an error
    that no compute removes: few points do not determine it. Returns the law,
    None for fewer than three points, and the exponent as a text.

    Example:
        >>> fit_power_law({1: [0.8], 4: [0.4], 16: [0.2]})[1]
        'exponent 0.50 ± 0.00'
    """
    from scipy import stats

    if len(errors) < 3:
        return None, "fewer than three points"
    means = [(x, statistics.mean(ys)) for x, ys in errors.items()]
    line = stats.linregress(*np.log(means).T)
    margin = stats.t.ppf(0.975, len(means) - 2) * line.stderr
    return (
        lambda x: np.exp(line.intercept) * x**line.slope,
        f"exponent {-line.slope:.2f} ± {margin:.2f}",
    )


# Transfer: 0 to 4 at 8x8 pixels, then 5 to 9 at 16x16.


def find_first_digits(place: Place) -> str:
    """Return the model of a pre-training of the same seed."""
    recipe = dataclasses.replace(RECIPES["digits_pretrain"], seed=place.seed)
    return pretrained(recipe, place.folder / f"pretrain_{place.seed}")


def place_transfer(trial: Trial):
    """Yield the accuracy over the updates."""
    for point in trial.more["curve"].split():
        step, accuracy = point.split(":")
        yield ACCURACY, trial.arm, int(step), 100 * float(accuracy)


def wins_mostly(trials: list[Trial]) -> bool:
    """Return whether transfer is better, in the mean and for 80 % of the seeds.

    A draw is not a win.
    """
    transfer, scratch = (
        [t.accuracy for t in sorted(trials, key=lambda t: t.seed) if t.arm == a]
        for a in ("transfer", "scratch")
    )
    wins = sum(t > s for t, s in zip(transfer, scratch, strict=True))
    is_better = statistics.mean(transfer) > statistics.mean(scratch)
    return is_better and wins >= 0.8 * len(transfer)


# Learning without labels: encoders, then classifiers of few labelled digits.

NUM_TRAINED = 1153  # 80 % of the training split, which the encoders see.
LABELS = (10, 30, 100, 300, NUM_TRAINED)
ENCODERS = {
    "new weights": None,
    "masked patches": "mpp_digits",
    "autoencoder": "mae_digits",
}


def choose_images(labels: int, place: Place) -> str:
    """Return the labelled images; those of two seeds are far apart."""
    apart = (NUM_TRAINED - labels) / max(place.seeds - 1, 1)
    first = round(place.seed % place.seeds * apart)
    return f"train[{first}:{first + labels}]"


def find_encoder(name: str, place: Place) -> str:
    """Return the encoder of a recipe."""
    recipe = dataclasses.replace(
        RECIPES[name], **DIGIT_SPLITS[CHOICE], epochs_per_eval=100
    )
    return pretrained(recipe, place.folder / name)


def place_labels(trial: Trial):
    """Yield the accuracy over the number of labelled images."""
    way, _, labels = trial.arm.removesuffix(" labels").rpartition(", ")
    yield ACCURACY, way, int(labels), 100 * trial.accuracy


# Fine-tuning: four ways, on digits that are painted into photographs.

# Folder -> classes, photograph, images and seed. The learning rate is selected
# on digits that the test of the report does not have.
PAINTED = {
    "first": (
        range(5),
        "china.jpg",
        {
            "train": study_images.ImageSplit(0, 0.8, 16),
            "test": study_images.ImageSplit(0.8, 1, 2),
        },
        0,
    ),
    CHOICE: (
        range(5, 10),
        "flower.jpg",
        {
            "train": study_images.ImageSplit(0, 0.6, 1),
            "test": study_images.ImageSplit(0.6, 0.8, 4),
        },
        1,
    ),
    REPORT: (
        range(5, 10),
        "flower.jpg",
        {
            "train": study_images.ImageSplit(0, 0.8, 1),
            "test": study_images.ImageSplit(0.8, 1, 4),
        },
        2,
    ),
}
PAINTED_RECIPE = Recipe(
    model="Pico/2",
    patch_size=4,
    image_size=study_images.PAINTED_SIDE,
    batch_size=32,
    weight_decay=0.05,
    steps_per_loop=10,
)
FIRST_UPDATES = 3000
WAYS = {
    "all": {"train_only": "all"},
    "last 2 blocks": {"train_only": "last_blocks:2"},
    "LoRA, rank 8": {"lora_rank": 8},
    "head": {"train_only": "head"},
}
# The model whose memory is estimated beside that of the trained one.
LARGE_MODEL, LARGE_BATCH = "B/16", 32


def build_first(recipe: Recipe, dataset: ImageDataset) -> VisionTransformer:
    """Return a new model for short trainings.

    Its patch kernel starts at a fifth of its usual size; docs/results.md,
    "Accuracy compared with keras-hub", has the reason.
    """
    config = dataclasses.replace(
        VARIANTS[recipe.model].config,
        patch_size=recipe.patch_size,
        image_size=recipe.image_size,
        channels=dataset.channels,
        num_classes=len(dataset.class_names),
    )
    model = VisionTransformer(config)
    kernel = model.get_layer("patch_encoder").kernel
    kernel.assign(0.2 * kernel)
    return model


def paint_digits(place: Place) -> str:
    """Return the images of a purpose, which is also the name of a folder."""
    folder = place.folder / place.purpose
    if not folder.exists():
        arguments = PAINTED[place.purpose]
        study_images.write_painted_digits(folder, *arguments)
    return f"folder:{folder}"


def find_painted_model(place: Place) -> str:
    """Return the initial model, which has learned the first digits."""
    path = place.folder / "model.keras"
    if not path.exists():
        recipe = dataclasses.replace(
            PAINTED_RECIPE,
            dataset=paint_digits(place._replace(purpose="first")),
            batch_size=64,
            total_steps=FIRST_UPDATES,
            warmup_steps=min(100, FIRST_UPDATES - 1),
            learning_rate=2e-3,
        )
        train_once(recipe, build_first).model.save(path)
    return str(path)


def measure_fine_tuning(trained: Trained) -> dict:
    """Return what a way of fine-tuning costs, also for the large model."""
    loop, recipe = trained.trainer.loop, trained.trainer.recipe
    large = VisionTransformer(VARIANTS[LARGE_MODEL].config)
    choose_trained(large, dataclasses.replace(recipe, init_from=None))
    optimizer = make_optimizer("adamw", large.trainable_variables, 1e-3)
    return {
        "trained": sum(
            math.prod(weight.shape) for weight in loop.model.trainable_weights
        ),
        "memory": estimate_memory(
            loop.model, recipe.batch_size, loop.optimizer
        ).total,
        "large_memory": estimate_memory(large, LARGE_BATCH, optimizer).total,
        "milliseconds": trained.milliseconds,
    }


def place_fine_tuning(trial: Trial):
    """Yield the accuracy over the memory."""
    memory = trial.more["memory"] / 2**20
    yield ACCURACY, trial.arm, memory, 100 * trial.accuracy


# Beside keras-hub's ViT, which `compile` and `fit` train by the same rule.


def train_keras_hub(
    recipe: Recipe, build: Callable | None = None, evaluations: int = 1
) -> Trained:
    """Train keras-hub's ViT on the same batches; see `train_once`."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(recipe.seed)
    dataset = open_dataset(recipe.dataset, train_split=recipe.train_split)
    model = build_keras_hub(recipe, dataset)
    schedule = (recipe.warmup_steps, recipe.schedule)
    optimizer = keras.optimizers.AdamW(
        WarmupSchedule(recipe.learning_rate, recipe.total_steps, *schedule),
        weight_decay=recipe.weight_decay,
        epsilon=1e-8,
        global_clipnorm=recipe.clip_norm,
    )
    # Kernels alone decay, as in ours.
    optimizer.exclude_from_weight_decay(
        var_list=[v for v in model.trainable_variables if v.name != "kernel"]
    )
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=recipe.label_smoothing
    )
    model.compile(optimizer, loss, metrics=[], jit_compile=recipe.use_xla)
    batches = train_batches(
        dataset,
        image_size=(recipe.image_size, recipe.image_size),
        batch_size=recipe.batch_size,
        augment=recipe.augment,
        seed=recipe.seed,
    )
    model.fit(batches, steps_per_epoch=recipe.total_steps, verbose=0)
    return Trained(model, {})


def build_keras_hub(recipe: Recipe, dataset: ImageDataset) -> keras.Model:
    """Return keras-hub's ViT of the sizes of `recipe.model`, with logits."""
    import keras_hub

    config = VARIANTS[recipe.model].config
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(recipe.image_size, recipe.image_size, dataset.channels),
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_dim,
    )
    return keras_hub.models.ViTImageClassifier(
        backbone, num_classes=len(dataset.class_names)
    )


def train_from_keras_hub(
    recipe: Recipe, build: Callable | None = None, evaluations: int = 1
) -> Trained:
    """Train ours from keras-hub's initial weights, with its GELU."""
    keras.utils.set_random_seed(recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset(recipe.dataset, train_split=recipe.train_split)
        build_keras_hub(recipe, dataset).save_to_preset(folder)
        return train_once(dataclasses.replace(recipe, init_from=folder))


def score_digits(trained: Trained) -> dict:
    """Return accuracy, loss without label smoothing, and parameters."""
    hits, losses, weights = [], [], []
    batches = eval_batches(
        open_dataset("digits"), image_size=(8, 8), batch_size=64
    )
    for images, labels, weight in batches.as_numpy_iterator():
        logits = keras.ops.cast(
            trained.model(images, training=False), "float32"
        )
        log = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
        hits.append(log.argmax(-1) == labels.argmax(-1))
        losses.append(-(labels * log).sum(-1))
        weights.append(weight)
    accuracy, loss = (
        float(np.average(np.concatenate(x), weights=np.concatenate(weights)))
        for x in (hits, losses)
    )
    parameters = trained.model.count_params()
    return {"accuracy": accuracy, "loss": loss, "parameters": parameters}


def is_not_lower(trials: list[Trial]) -> bool:
    """Return whether the mean accuracy of ours is not below keras-hub's."""
    ours, theirs = (
        statistics.mean(t.accuracy for t in trials if t.arm == arm)
        for arm in ("ours", "keras-hub")
    )
    return ours >= theirs


BY_THE_DIGITS = {
    "rates": (RECIPES["digits"].learning_rate,),
    "recipe": RECIPES["digits"],
    "choice_seeds": (),
    "warmup": RECIPES["digits"].warmup_steps,
    "measure": score_digits,
    "columns": {"parameters": int},
}
PLACEMENTS = {
    "": "stem",
    ", every block": "every_block",
    ", every block, shared": "every_block_shared",
}
STUDIES = {
    "activations": Study(
        doc="GELU, ReLU and ELU, each with and without dropout (Hendrycks and "
        "Gimpel 2016, arXiv:1606.08415, section 3.1)",
        arms={
            f"{name}{text}": Arm({"mlp_activation": key, "dropout_rate": rate})
            for rate, text in ((0.0, ""), (0.1, ", dropout 0.1"))
            for name, key in (
                ("GELU", "exact"),
                ("ReLU", "relu"),
                ("ELU", "elu"),
            )
        },
        rates=RATES,
        average=statistics.median,
    ),
    "pooling": Study(
        doc="class token and average over learning rates (arXiv:2010.11929, "
        "appendix D.3, figure 9)",
        arms={
            "class token": Arm({"pooling": "token"}),
            "average": Arm({"pooling": "avg"}),
        },
        rates=(*RATES, 3e-2),
        choice_seeds=(),
        seeds=3,
        points=lambda trial: [
            (ACCURACY, trial.arm, trial.learning_rate, 100 * trial.accuracy)
        ],
        axis="learning rate",
    ),
    "positions": Study(
        doc="no, 1-D, 2-D and relative positions, before the first or every "
        "block (arXiv:2010.11929, appendix D.4, table 8)",
        arms={
            "none": Arm({"position_embedding": "none"}),
            **{
                f"{name}{text}": Arm(
                    {
                        "position_embedding": kind,
                        "position_placement": placement,
                    }
                )
                for name, kind in (("1-D", "learned"), ("2-D", "learned_2d"))
                for text, placement in PLACEMENTS.items()
            },
            "relative": Arm(
                {"position_embedding": "none", "relative_positions": "keys"}
            ),
        },
        rates=RATES,
        seeds=3,
        average=statistics.median,
    ),
    "shape": Study(
        doc="depth, width, MLP and patch size, scaled one at a time "
        "(arXiv:2010.11929, appendix D.2, figure 8)",
        arms={
            name: Arm(build=functools.partial(build_shape, config))
            for name, config in SHAPES.items()
        },
        rates=(*RATES, 3e-2),
        updates=2000,
        points=place_shape,
        axis="relative compute",
        **MOVED,
    ),
    "data_size": Study(
        doc="ViTs and a BiT ResNet on 100 to 10,000 images (arXiv:2010.11929, "
        "section 4.3, figures 3 and 4)",
        arms={
            f"{model}, {number:,} images": Arm(
                {"train_split": f"train[:{number}]"},
                build,
                rate_of=f"{model}, {SUBSETS[0]:,} images",
            )
            for model, build in COMPARED.items()
            for number in SUBSETS
        },
        rates=RATES[1:],
        updates=3000,
        measure=measure_few_shot,
        columns={"few_shot": float},
        points=place_subset,
        axis="training images",
        **MOVED,
    ),
    "compute": Study(
        doc="ViTs, ResNets and hybrids over the compute of their training, "
        "with power laws (arXiv:2010.11929, section 4.4, figure 5)",
        arms={
            f"{family}, {size}, length {length}": Arm(
                build=FAMILIES[family][size],
                length=length,
                rate=RATE_FACTORS[family],
                rate_of=f"{family}, medium, length 1",
            )
            for size, length in TRAININGS
            for family in FAMILIES
        },
        rates=RATES,
        updates=600,
        measure=count_training,
        columns={"flops": float},
        points=place_compute,
        axis="FLOPs of the training",
        log="xy",
        laws=fit_power_law,
        **MOVED,
    ),
    "transfer": Study(
        doc="the digits 5 to 9, from a model of 0 to 4 and from scratch",
        arms={
            "transfer": Arm({"init_from": find_first_digits}),
            "scratch": Arm({"init_from": None, "init_head": "auto"}),
        },
        rates=(3e-3, 1e-2, 3e-2),
        recipe=RECIPES["digits_transfer"],
        choice_seeds=(100, 101),
        updates=66,
        warmup=10,
        evaluations=6,
        measure=lambda trained: {
            "curve": " ".join(f"{x}:{y:.6f}" for x, y in trained.evaluations)
        },
        columns={"curve": str},
        points=place_transfer,
        axis="update",
        log="",
        wins=wins_mostly,
    ),
    "self_supervision": Study(
        doc="few labelled digits, from new weights and from encoders that "
        "learned without labels",
        arms={
            f"{way}, {labels} labels": Arm(
                {
                    "train_split": functools.partial(choose_images, labels),
                    "batch_size": min(32, labels),
                    "init_from": name and functools.partial(find_encoder, name),
                }
            )
            for labels in LABELS
            for way, name in ENCODERS.items()
        },
        rates=RATES[:3],
        splits={
            CHOICE: {"eval_split": DIGIT_SPLITS[CHOICE]["eval_split"]},
            REPORT: {"eval_split": "test"},
        },
        points=place_labels,
        axis="labelled images",
    ),
    "fine_tuning": Study(
        doc="memory, time and accuracy of fine-tuning as a whole, the last "
        "blocks, with LoRA, and the head",
        arms={
            way: Arm(
                {
                    "dataset": paint_digits,
                    "init_from": find_painted_model,
                    "init_head": "reset",
                    **fields,
                }
            )
            for way, fields in WAYS.items()
        },
        rates=(*RATES[1:], 3e-2),
        recipe=PAINTED_RECIPE,
        splits={CHOICE: {}, REPORT: {}},
        seeds=3,
        updates=300,
        measure=measure_fine_tuning,
        columns={
            "trained": int,
            "memory": int,
            "large_memory": int,
            "milliseconds": float,
        },
        points=place_fine_tuning,
        axis="memory of an update (MiB)",
    ),
    "accuracy_keras_hub": Study(
        doc="the accuracy of ours beside keras-hub's ViT, by the same recipe",
        arms={"ours": Arm(), "keras-hub": Arm(train=train_keras_hub)},
        updates=2300,
        wins=is_not_lower,
        **BY_THE_DIGITS,
    ),
    "accuracy_keras_hub_short": Study(
        doc="the same in a shorter training, and ours from keras-hub's start",
        arms={
            "ours": Arm(),
            "keras-hub": Arm(train=train_keras_hub),
            "ours from keras-hub's start": Arm(train=train_from_keras_hub),
        },
        seeds=3,
        updates=1380,
        **BY_THE_DIGITS,
    ),
}

if __name__ == "__main__":
    sys.exit(main(STUDIES))
