"""Train beside keras-hub's ViT: python -m benchmarks.accuracy_keras_hub.

Recipe `digits`. Our model is trained by the trainer; keras-hub's, of the same
sizes, by `compile` and `fit`, on the same batches and by the same rule. An
optional third one is ours, started from keras-hub's weights and with its GELU:
any difference from keras-hub's is then the trainer's.
"""

import argparse
import contextlib
import dataclasses
import io
import statistics
import sys
import tempfile
import time

import keras
import numpy as np

from benchmarks.harness import add_csv_option, make_parser, write_table
from keras_vit.models import VARIANTS
from keras_vit.tables import format_table
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.optim.schedules import WarmupSchedule
from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe
from trainers.train import prepare, train

Trained = tuple[keras.Model, int]  # And the updates it took.


@dataclasses.dataclass(frozen=True)
class Result:
    """The accuracy of a model on the test split after a training run.

    Args:
        package: A key of PACKAGES.
        seed: Of the weights, the order and the augmentation.
        accuracy: Share of the images.
        loss: Cross-entropy, without label smoothing.
        parameters: Of the model.
        updates: Of the training.
        seconds: That the training took.
    """

    package: str
    seed: int
    accuracy: float
    loss: float
    parameters: int
    updates: int
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Train all, print the table, write the CSV file.

    Args:
        arguments: Those of the command line, None for the real ones.

    Returns:
        The exit code: 1 if ours has to be not lower, and is lower.
    """
    options = parse(arguments)
    dataset = open_dataset(RECIPES["digits"].dataset)
    results = []
    for package in options.packages:
        for seed in range(options.seeds):
            recipe = dataclasses.replace(
                RECIPES["digits"],
                epochs=options.epochs,
                epochs_per_eval=options.epochs,
                seed=seed,
                peak_tflops=1.0,  # Of no interest here, so not measured.
            )
            results.append(measure(package, recipe, dataset))
            # After each, so that an interrupted run keeps its results.
            write_table(options.csv, csv_rows(results))
            print(results[-1], flush=True)
    print(describe(results))
    if not options.require:
        return 0
    ours, theirs = (mean_accuracy(results, p) for p in ("ours", "keras-hub"))
    return int(ours < theirs)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=5, help="number of them, from 0")
    add(
        "--packages",
        nargs="+",
        choices=PACKAGES,
        default=["ours", "keras-hub"],
        help="whose models to train",
    )
    add(
        "--epochs",
        type=int,
        default=RECIPES["digits"].epochs,
        help="of each training",
    )
    add_csv_option(add, "accuracy_keras_hub")
    add(
        "--require",
        action="store_true",
        help="exit with 1 if the mean accuracy of ours is lower",
    )
    options = parser.parse_args(arguments)
    if options.require and not {"ours", "keras-hub"} <= {*options.packages}:
        parser.error("--require needs --packages ours keras-hub")
    return options


def measure(package: str, recipe: Recipe, dataset: ImageDataset) -> Result:
    """Return the result of the model of `package`, trained by `recipe`."""
    keras.backend.clear_session()
    start = time.perf_counter()
    model, updates = PACKAGES[package](recipe, dataset)
    seconds = time.perf_counter() - start
    accuracy, loss = score(model, recipe, dataset)
    size = model.count_params()
    return Result(package, recipe.seed, accuracy, loss, size, updates, seconds)


def train_ours(recipe: Recipe, dataset: ImageDataset) -> Trained:
    """Return the model that the trainer leaves, and its updates."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        job = prepare(recipe, folder)
        train(job)
    return job.loop.model, job.total_steps


def train_keras_hub(recipe: Recipe, dataset: ImageDataset) -> Trained:
    """Return keras-hub's ViT after `fit`, and its updates."""
    num_train = dataset.num_examples(dataset.train_split)
    steps_per_epoch = round(num_train / recipe.batch_size)
    keras.utils.set_random_seed(recipe.seed)
    model = build_keras_hub(recipe, dataset)
    optimizer = make_adamw(recipe, model, steps_per_epoch * recipe.epochs)
    model.compile(
        optimizer,
        keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=recipe.label_smoothing
        ),
        metrics=[],
        jit_compile=recipe.use_xla,
    )
    batches = train_batches(
        dataset,
        image_size=(recipe.image_size, recipe.image_size),
        batch_size=recipe.batch_size,
        augment=recipe.augment,
        seed=recipe.seed,
    )
    model.fit(
        batches,
        steps_per_epoch=steps_per_epoch,
        epochs=recipe.epochs,
        verbose=0,
    )
    return model, int(optimizer.iterations)


def make_adamw(
    recipe: Recipe, model: keras.Model, total_steps: int
) -> keras.optimizers.Optimizer:
    """Return Keras' AdamW by the rule of `recipe`."""
    optimizer = keras.optimizers.AdamW(
        WarmupSchedule(
            recipe.learning_rate,
            total_steps,
            recipe.warmup_steps,
            recipe.schedule,
        ),
        weight_decay=recipe.weight_decay,
        epsilon=1e-8,
        global_clipnorm=recipe.clip_norm,
    )
    # Kernels alone decay, as in ours.
    optimizer.exclude_from_weight_decay(
        var_list=[v for v in model.trainable_variables if v.name != "kernel"]
    )
    return optimizer


def train_ours_from_keras_hub(recipe: Recipe, dataset: ImageDataset) -> Trained:
    """Return our model, trained from keras-hub's initial weights."""
    keras.utils.set_random_seed(recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        build_keras_hub(recipe, dataset).save_to_preset(folder)
        return train_ours(
            dataclasses.replace(recipe, init_from=folder), dataset
        )


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


def score(
    model: keras.Model, recipe: Recipe, dataset: ImageDataset
) -> tuple[float, float]:
    """Return accuracy and cross-entropy on the test split."""
    batches = eval_batches(
        dataset,
        image_size=(recipe.image_size, recipe.image_size),
        batch_size=recipe.batch_size,
    )
    hits, losses, weights = [], [], []
    for images, labels, weight in batches.as_numpy_iterator():
        logits = keras.ops.cast(model(images, training=False), "float32")
        log = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
        hits.append(log.argmax(-1) == labels.argmax(-1))
        losses.append(-(labels * log).sum(-1))
        weights.append(weight)
    return tuple(
        float(np.average(np.concatenate(x), weights=np.concatenate(weights)))
        for x in (hits, losses)
    )


def mean_accuracy(results: list[Result], package: str) -> float:
    """Return the mean over the seeds."""
    return statistics.mean(
        result.accuracy for result in results if result.package == package
    )


def describe(results: list[Result]) -> str:
    """Return a Markdown table, a row for each seed and one of the means."""
    packages = list(dict.fromkeys(result.package for result in results))
    rows = {
        seed: [result for result in results if result.seed == seed]
        for seed in sorted({result.seed for result in results})
    }
    table = []
    for name, chosen in {**rows, "mean": results}.items():
        table.append([name])
        for package in packages:
            loss = [r.loss for r in chosen if r.package == package]
            table[-1] += [
                f"{100 * mean_accuracy(chosen, package):.2f} %",
                f"{statistics.mean(loss):.4f}",
            ]
    columns = [column for package in packages for column in (package, "loss")]
    return format_table(["seed", *columns], table)


def csv_rows(results: list[Result]) -> list[dict]:
    """Return one row a training run."""
    return [
        {
            **dataclasses.asdict(result),
            "accuracy": f"{result.accuracy:.6f}",
            "loss": f"{result.loss:.6f}",
            "seconds": f"{result.seconds:.1f}",
        }
        for result in results
    ]


PACKAGES = {
    "ours": train_ours,
    "keras-hub": train_keras_hub,
    "ours from keras-hub's start": train_ours_from_keras_hub,
}

if __name__ == "__main__":
    sys.exit(main())
