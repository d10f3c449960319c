"""The recipes: their flags, sources and schedules, and a step of each kind."""

import dataclasses
import math
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import flags

import keras_vit
from keras_vit import VARIANTS, export, layers
from keras_vit.models import tuning
from keras_vit.pretraining import PATCH_TARGETS
from keras_vit.weights import PRETRAINED
from keras_vit.weights.hub import DESCRIPTIONS, HUB_MODELS
from tests.trainers.made import write_photos, write_records
from tests.trainers.mocked import write_metadata
from trainers import command_line
from trainers.augment.augmentation import parse_augmentation
from trainers.data.readers.vtab import VTAB_TASKS
from trainers.engine.jax import STRATEGIES as JAX_STRATEGIES
from trainers.engine.tensorflow import STRATEGIES, SUM_DTYPES
from trainers.evaluation.probing import PROBES
from trainers.models.resnets import build_baseline
from trainers.optim.losses import LOSSES, TARGETS
from trainers.optim.rules import ACCUMULATOR_DTYPES, OPTIMIZERS
from trainers.optim.schedules import DECAYS, WarmupSchedule, make_schedule
from trainers.recipes import recipe as schema
from trainers.recipes.baselines import APPLICATIONS, BASELINES
from trainers.recipes.flags import ChosenRecipe, flag_fields
from trainers.recipes.photos import RULES
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import (
    RECIPES,
    describe_settings,
    describe_sources,
)
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import Trainer, prepare

PAGE = pathlib.Path(__file__).parents[3] / "docs/recipes.md"


def test_without_other_flags_it_is_the_recipe(parse):
    for name, recipe in RECIPES.items():
        assert parse(f"--recipe={name}").recipe == recipe


def test_every_field_but_the_notes_is_a_flag_that_replaces_it(parse):
    """Type by type: the flag's value arrives in the field, others stay."""
    samples = {str: "x", int: 7, float: 0.25, bool: True}
    chosen = {"augment": "flip_lr", "eval_preprocess": "resize(9)"}
    chosen |= {"train_only": "head", "lora_layers": "out", "patch_sizes": "4,6"}
    chosen |= {"milestones": "1/3,0.5", "threshold_goal": "precision:0.9"}
    chosen |= {"trackers": "mlflow", "pixel_range": "0,4095"}
    chosen |= {"objective": "classify"}  # Others contradict many fields.
    # And these contradict it.
    alone = {"dense_head": "depth", "dense_blocks": "segment"}
    alone |= {"dice_weight": "segment", "depth_loss": "depth"}
    alone |= {"max_depth": "depth", "depth_unit": "depth"}
    alone |= {"mask_ratio": "autoencoder", "patch_target": "masked_patches"}
    alone |= {f"decoder_{n}": "autoencoder" for n in ("width", "depth")}
    alone |= dict.fromkeys(["decoder_heads", "normalize_pixels"], "autoencoder")
    schedules = {"milestones": "steps", "timescale": "rsqrt"}
    chosen |= {"dense_blocks": "0,-1"}
    names = {field.name for field in dataclasses.fields(Recipe)}
    assert names - {f.name for f in flag_fields()} == {"source", "expected"}
    given = {}
    for field in flag_fields():
        kind = next(k for k in samples if k.__name__ in str(field.type))
        choices = field.metadata["choices"]
        want = chosen.get(field.name, samples[kind])
        if choices and field.name not in chosen:
            want = choices[-1]
        if field.name in alone:
            fields = {"objective": alone[field.name], field.name: want}
            fields["label_smoothing"] = 0.0
        elif field.name in schedules:
            fields = {"schedule": schedules[field.name], field.name: want}
        else:  # Beside those before, which some need.
            given[field.name] = want
            fields = given
        words = [f"--{name}={value}" for name, value in fields.items()]
        changed = parse("--recipe=digits", *words).recipe
        assert changed == dataclasses.replace(RECIPES["digits"], **fields)


def test_epochs_win_over_the_steps_of_a_recipe(parse, monkeypatch):
    steps = dataclasses.replace(RECIPES["digits"], total_steps=50)
    monkeypatch.setitem(RECIPES, "digits", steps)
    assert parse("--recipe=digits", "--epochs=2").recipe.total_steps is None


@pytest.mark.parametrize(
    "line, message",
    [
        ("--optimizer=adams", "adamw"),
        ("--model=B/17", "Ti/16"),
        ("--batch_size=many", "batch_size"),
    ],
)
def test_mistyped_values_are_refused_with_what_is_known(parse, line, message):
    with pytest.raises(
        flags.IllegalFlagValueError, match=message.replace("|", r"\|")
    ):
        parse(line)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--mask_ratio=0.5"], "`mask_ratio` .*masked_patches or autoencoder"),
        (
            ["--objective=autoencoder", "--patch_target=pixels"],
            "`patch_target` .*--objective=masked_patches",
        ),
        (["--distillation_weight=1"], "`distillation_weight` .*--teacher\\."),
        (["--milestones=0.5"], "`milestones` .*schedule='cosine'"),
        (["--use_average_debias"], "`use_average_debias` .*average_decay=0.0"),
    ],
)
def test_a_flag_without_effect_is_refused(parse, words, message):
    with pytest.raises(ValueError, match=message):
        _ = parse("--recipe=digits", *words).recipe


def test_a_mistyped_recipe_gets_a_suggestion(parse):
    with pytest.raises(ValueError, match="Did you mean 'digits'"):
        parse("--recipe=digit")


def test_mistyped_flag_gets_a_suggestion(parse):
    with pytest.raises(flags.UnrecognizedFlagError, match="learning_rate"):
        parse("--lerning_rate=1")


# Every row as its source has it, typed from there: the weight decay in the
# units of the source.
PAPER = {"dataset": "imagenet2012", "batch_size": 4096, "warmup_steps": 10_000}
I21K = {**PAPER, "dataset": "tfrecord:imagenet21k"}
BIG_VISION = {"learning_rate": 1e-3, "schedule": "cosine", "clip_norm": 1.0}
BIG_VISION |= {"final_fraction": 0.0, "accumulator_dtype": "bfloat16"}
SIGMOID = {"loss": "sigmoid", "head_bias": -10.0, "epochs": 300}
TUNING = {"optimizer": "sgd", "schedule": "cosine", "batch_size": 512}
TUNING |= {"weight_decay": 0.0, "clip_norm": 1.0, "loss": "softmax"}
TUNING |= {"image_size": 384, "accumulator_dtype": "bfloat16"}
TUNING |= {"dropout_rate": 0.0, "head_bias": 0.0, "final_fraction": 0.0}
CROP = "inception_crop|flip_lr"


def steps(total, warmup, rate):
    names = ("total_steps", "warmup_steps", "learning_rate")
    return dict(zip(names, (total, warmup, rate)))


MAE = {
    "objective": "autoencoder",
    "batch_size": 4096,
    "learning_rate": 2.4e-3,
    "adam_beta2": 0.95,
    "weight_decay": 0.05,
    "epochs": 800,
    "warmup_steps": pytest.approx(40 * 1_281_167 / 4096, abs=1),
    "decoder_width": 512,
    "decoder_depth": 8,
    "decoder_heads": 16,
    "mlp_activation": "exact",
}
MAE_TUNING = {
    "batch_size": 1024,
    "adam_beta2": 0.999,
    "weight_decay": 0.05,
    "warmup_steps": pytest.approx(5 * 1_281_167 / 1024, abs=1),
    "label_smoothing": 0.1,
    "pooling": "avg",
    "use_pooling_norm": True,
    "augment": "inception_crop(smallest=0.08)|flip_lr|randaugment(2, 9)|"
    "random_erasing|normalize(imagenet)|mixup(0.8)|cutmix(1.0)",
}
AUGREG = I21K | BIG_VISION | SIGMOID | {"weight_decay": 0.1}
OF_I21K = I21K | {"epochs": 90, "learning_rate": 1e-3, "schedule": "linear"}
OF_I21K |= {"weight_decay": 0.03, "dropout_rate": 0.1, "clip_norm": 0.0}
OF_I21K |= {"loss": "sigmoid", "head_bias": -10.0}
OF_I1K = PAPER | {"epochs": 300, "learning_rate": 3e-3, "schedule": "cosine"}
OF_I1K |= {"weight_decay": 0.3, "dropout_rate": 0.1, "clip_norm": 1.0}
OF_I1K |= {"final_fraction": 0.0, "loss": "sigmoid"}


# arXiv:1912.11370, section 3.3, and bit_hyperrule.py of big_transfer.
BIT = {"init_from": "BiT-M-R50x1", "batch_size": 512, "optimizer": "sgd"}
BIT |= {"schedule": "steps", "weight_decay": 0.0, "clip_norm": 0.0}
BIT |= {"image_size": 480, "eval_preprocess": "", "dropout_rate": 0.0}
BIT |= {"loss": "softmax", "label_smoothing": 0.0}
BIT_CROP = "resize(512)|random_crop|flip_lr"


RESIZED = TUNING | {"augment": "resize_small(448)|random_crop|flip_lr"}
RESIZED |= {"train_split": "train[:98%]"}
FEW = TUNING | steps(500, 100, 0.003)
FEW |= {"augment": CROP, "train_split": "train[:90%]"}
FIGURES = {
    # arXiv:2010.11929, table 3 and its caption.
    "i21k_b16": OF_I21K | {"model": "B/16", "representation_size": 768},
    "i21k_b32": OF_I21K | {"model": "B/32", "representation_size": 768},
    "i21k_l16": OF_I21K | {"model": "L/16", "representation_size": 1024},
    "i21k_l16_30ep": OF_I21K | {"model": "L/16", "epochs": 30},
    "i21k_l32": OF_I21K | {"model": "L/32"},
    "i21k_l32_30ep": OF_I21K | {"model": "L/32", "epochs": 30},
    "i1k_b16": OF_I1K | {"model": "B/16"},
    "i1k_b32": OF_I1K | {"model": "B/32"},
    "i1k_l16": OF_I1K | {"model": "L/16"},
    "i1k_l32": OF_I1K | {"model": "L/32"},
    # arXiv:2010.11929, table 4; rates of vision_transformer/configs.
    "imagenet_b16": TUNING | steps(20_000, 500, 0.03) | {"augment": CROP},
    "cifar10_b16": TUNING | steps(10_000, 500, 0.01) | {"augment": CROP},
    "cifar100_b16": TUNING | steps(10_000, 500, 0.03) | {"augment": CROP},
    "pets_b16": TUNING | steps(500, 100, 0.01) | {"augment": CROP},
    "flowers_b16": TUNING | steps(500, 100, 0.01) | {"augment": CROP},
    "vtab_l16": TUNING
    | steps(2500, 500, 0.01)
    | {"image_size": 384, "init_from": "L/16-i21k"},
    # Table 2.
    "imagenet_l16_512": TUNING
    | steps(20_000, 500, 0.03)
    | {"image_size": 512, "average_decay": 0.9999},
    # README and notebook of vision_transformer.
    "cifar10_b16_500steps": TUNING | steps(500, 50, 0.03),
    "cifar10_b16_1000steps": TUNING | steps(1000, 100, 0.03),
    "cifar100_b16_500steps": TUNING | steps(500, 50, 0.03),
    "cifar100_b16_1000steps": TUNING | steps(1000, 100, 0.03),
    "cifar10_b32_100steps": TUNING
    | steps(100, 5, 0.03)
    | {"image_size": 224, "init_from": "B/32-i21k"},
    # AugReg: names of the recommended files, levels of section 3.2.
    "augreg_i21k_ti16": AUGREG
    | {"model": "Ti/16", "weight_decay": 0.03, "augment": CROP},
    "augreg_i21k_b32": AUGREG
    | {"model": "B/32", "augment": f"{CROP}|randaugment(2, 10)|mixup(0.2)"},
    "augreg_i21k_b16": AUGREG
    | {"model": "B/16", "augment": f"{CROP}|randaugment(2, 15)|mixup(0.2)"},
    "augreg_i21k_l16": AUGREG
    | {"model": "L/16", "augment": f"{CROP}|randaugment(2, 20)|mixup(0.5)"},
    "augreg_i21k_r50_l32": AUGREG
    | {"augment": f"{CROP}|randaugment(2, 15)|mixup(0.2)"}
    | {"model": "R50+L/32", "dropout_rate": 0.1, "stochastic_depth_rate": 0.1},
    # Configurations of big_vision, `wd` being 1e-4.
    "augreg_i21k_b16_gap": AUGREG
    | {"augment": f"{CROP}|randaugment(2, 10)|mixup(0.2)"}
    | {"representation_size": None},
    "augreg_i1k_b16": AUGREG
    | PAPER
    | {"augment": f"{CROP}|randaugment(2, 15)|mixup(0.5)"}
    | {"representation_size": 768}
    | {"head_bias": -6.9, "train_split": "train[:99%]"},
    **{
        f"s16_i1k_{epochs}ep": PAPER
        | BIG_VISION
        | {"augment": f"{CROP}|randaugment(2, 10)|mixup(0.2)"}
        | {"weight_decay": 1e-4 / 1e-3, "representation_size": 384}
        | {"loss": "softmax", "head_bias": 0.0, "dropout_rate": 0.0}
        | {"batch_size": 1024, "epochs": epochs}
        | {"position_embedding": "sincos_2d", "train_split": "train[:99%]"}
        | {"eval_preprocess": "resize_small(256)|central_crop"}
        for epochs in (90, 150, 300)
    },
    # arXiv:2106.10270, table 4, and transfer.py of big_vision.
    "augreg_finetune_imagenet_b16": TUNING | steps(20_000, 500, 0.03),
    "augreg_finetune_imagenet_b32": TUNING
    | steps(20_000, 500, 0.03)
    | {"augment": CROP, "train_split": "train[:99%]"},
    "augreg_finetune_cifar10_b32": RESIZED | steps(10_000, 500, 0.003),
    "augreg_finetune_cifar100_b32": RESIZED | steps(10_000, 500, 0.01),
    "augreg_finetune_pets_b32": FEW,
    "augreg_finetune_flowers_b32": FEW,
    "pets_r50x1": BIT | steps(500, 100, 0.003) | {"augment": BIT_CROP},
    "cifar10_r50x1": BIT
    | steps(10_000, 500, 0.003)
    | {"augment": "resize(160)|random_crop|flip_lr|mixup(0.1)"}
    | {"image_size": 128},
    "imagenet_r50x1": BIT
    | steps(20_000, 500, 0.003)
    | {"augment": f"{BIT_CROP}|mixup(0.1)"},
    # arXiv:1706.02677: 0.1 for 256 images, five epochs of warm-up, a decay of
    # 1e-4 in the gradient, of which a momentum of 0.9 makes ten times as much.
    "resnet50_i1k": {
        "learning_rate": 0.1 * 1024 / 256,
        "warmup_steps": 5 * round(1_281_167 / 1024),
        "weight_decay": 1e-4 / (1 - 0.9),
        "epochs": 90,
        "optimizer": "sgd",
        "schedule": "steps",
    },
    # facebookresearch/mae, PRETRAIN.md and FINETUNE.md; blr * batch / 256.
    "mae_b16": MAE | {"model": "B/16"},
    "mae_l16": MAE | {"model": "L/16"},
    "mae_finetune_b16": MAE_TUNING
    | {"learning_rate": 2e-3, "layer_decay": 0.65, "epochs": 100}
    | {"stochastic_depth_rate": 0.1, "final_fraction": 5e-4},
    "mae_finetune_l16": MAE_TUNING
    | {"learning_rate": 4e-3, "layer_decay": 0.75, "epochs": 50}
    | {"stochastic_depth_rate": 0.2, "final_fraction": 2.5e-4},
}
OURS = [
    "digits",
    "digits_exact",
    "flexi_digits",
    "mpp_digits",
    "mae_digits",
    "digits_pretrain",
    "digits_transfer",
    "segment_linear",
    "segment_tune",
    "depth_linear",
    "digits_in_photos",
    "segment_digits",
    "depth_digits",
]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_source(name):
    recipe = RECIPES[name]
    got = {field: getattr(recipe, field) for field in FIGURES[name]}
    assert got == pytest.approx(FIGURES[name])


def test_every_recipe_of_others_is_compared_with_its_source():
    assert set(RECIPES) - set(FIGURES) == {*OURS, *RULES, "cifar10"}


def test_linear_decay_of_the_paper_ends_at_1e_5():
    recipe = RECIPES["i21k_b16"]
    schedule = WarmupSchedule(
        recipe.learning_rate,
        20_000,
        recipe.warmup_steps,
        recipe.schedule,
        final_fraction=recipe.final_fraction,
    )
    assert float(schedule(20_000)) == pytest.approx(1e-5)


def test_every_recipe_fits_its_model_at_full_size():
    """Checked as the model would check it, without its weights."""
    for name, recipe in RECIPES.items():
        if recipe.model in BASELINES or str(recipe.init_from).endswith("keras"):
            continue
        if recipe.init_from:
            # Also of one on the hub, which may be of no variant.
            name, _, _ = recipe.init_from.rpartition("-")
            if name not in VARIANTS:
                assert recipe.image_size % int(name.rpartition("/")[2]) == 0
                continue
            config = PRETRAINED.get(recipe.init_from, VARIANTS[name]).config
            hidden = None
        else:
            config = VARIANTS[recipe.model].config
            hidden = recipe.representation_size
        config = dataclasses.replace(
            config,
            image_size=recipe.image_size,
            patch_size=recipe.patch_size or config.patch_size,
            pooling=recipe.pooling or config.pooling,
            position_embedding=recipe.position_embedding,
        )
        assert min(config.grid_size) >= 4, name
        assert hidden in (None, config.width), name


def test_images_come_out_at_the_size_of_the_recipe():
    """Except images of 8 and 32 pixels, which are resized afterwards."""
    image = np.random.default_rng(0).uniform(0, 255, (300, 250, 3))
    lines = {
        (line, recipe.image_size)
        for recipe in RECIPES.values()
        for line in (recipe.augment, recipe.eval_preprocess)
        if line and recipe.image_size >= 224
    }
    for line, size in lines:
        function = parse_augmentation(line, (size, size)).image
        result = function(tf.constant(image, tf.float32), (0, 1))
        assert tuple(result.shape) == (size, size, 3), line


def test_the_command_of_the_page_writes_its_tables(tmp_path, monkeypatch):
    page = tmp_path / "docs/recipes.md"
    page.parent.mkdir()
    text = PAGE.read_text().replace("| 4096 |", "| 8 |")
    page.write_text(text.replace(". Not run here. |", " |"))
    for table in (describe_settings(), describe_sources()):
        assert table not in page.read_text()
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r'-c "([^"]*update_page[^"]*)"', PAGE.read_text())
    exec(code, {})
    assert page.read_text() == PAGE.read_text()


# A step of one recipe of each kind.

KINDS = {
    "cifar10_b16": "a checkpoint of Google",
    "s16_i1k_90ep": "a new model",
    "augreg_i21k_r50_l32": "a hybrid, by sigmoid",
    "mae_finetune_b16": "from the run of another recipe, an autoencoder",
    "flexi_digits": "patches of several sizes",
    "photos_lora": "LoRA",
}


def shrink(recipe: Recipe) -> Recipe:
    """Reduce all sizes that take time; the mathematics of an update stay."""
    if recipe.image_size == 224 and not recipe.init_from:
        side = VARIANTS[recipe.model].config.patch_size
        recipe = dataclasses.replace(recipe, image_size=64 - 64 % side)
    if recipe.objective == "autoencoder":
        recipe = dataclasses.replace(
            recipe, decoder_width=32, decoder_depth=1, decoder_heads=2
        )
    return dataclasses.replace(
        recipe,
        batch_size=4,
        total_steps=1,
        warmup_steps=0,
        epochs_per_eval=1,
        peak_tflops=1.0,  # Not measured.
        epochs=1.0,
        # Its graph takes longer than the rest; all lines are run above.
        augment=re.sub(r"randaugment\(.*?\)\|?", "", recipe.augment),
    )


def shrink_model(config, **changes):
    """Return a model of one block, with all that is special about it."""
    stages = config.stem_stages
    return dataclasses.replace(
        config,
        width=32,
        depth=1,
        mlp_dim=64,
        num_heads=2,
        stem_stages=stages and (1,) * len(stages),
        **changes,
    )


def test_a_baseline_answers_logits_in_the_precision_asked_for():
    name = next(iter(APPLICATIONS))
    model = build_baseline(
        name, image_size=32, channels=1, num_classes=3, dtype="mixed_bfloat16"
    )
    assert model.input_shape == (None, 32, 32, 1)
    assert model.output_shape == (None, 3)
    assert model.layers[-1].activation is keras.activations.linear
    policies = {layer.dtype_policy.name for layer in model.layers}
    assert policies == {"mixed_bfloat16"}
    assert keras.config.dtype_policy().name == "float32"


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """Return a folder with all that the recipes name, in small."""
    folder = tmp_path_factory.mktemp("made_up")
    write_metadata("cifar10", ["train", "test"], folder)
    write_metadata("imagenet2012", ["train", "validation"], folder)
    noise = np.random.default_rng(0).integers(0, 255, (8, 40, 30, 3), "uint8")
    encoded = [tf.io.encode_jpeg(image).numpy() for image in noise]
    (folder / "imagenet21k").mkdir()
    names = "\n".join("abcdefghi")
    (folder / "imagenet21k/labels.txt").write_text(names)
    for split in ("train", "test"):
        write_records(folder / f"imagenet21k/{split}-0", encoded, range(8))
    initial = {RECIPES[name].init_from for name in KINDS}
    for name in initial & set(PRETRAINED):
        config = PRETRAINED[name].config
        hidden = config.representation_size and 32
        config = shrink_model(config, num_classes=3, representation_size=hidden)
        path = folder / "cache" / PRETRAINED[name].file
        path.parent.mkdir(parents=True, exist_ok=True)
        keras_vit.save_checkpoint(keras_vit.VisionTransformer(config), path)
    for name in initial & set(HUB_MODELS):
        config = VARIANTS[name.rpartition("-")[0]].config
        config = shrink_model(config, num_classes=0, activation="exact")
        path = folder / "cache/huggingface" / HUB_MODELS[name].repository
        model = keras_vit.VisionTransformer(config)
        keras_vit.save_checkpoint(model, path, layout="timm")
        for file in DESCRIPTIONS:  # As if the repository had none.
            (path / f".no_{file}").touch()
    return folder


@pytest.fixture
def take_step(made_up, tmp_path, monkeypatch):
    """Return a function that makes one update of a recipe, in small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(made_up / "cache"))
    (tmp_path / "imagenet21k").symlink_to(made_up / "imagenet21k")
    places = 3 * ["train/cat", "train/dog"] + ["test/cat", "test/dog"]
    write_photos(tmp_path / "photos", places, size=(40, 30))
    # Takes as long as the step itself, and has tests of its own.
    monkeypatch.setattr(Trainer, "flops_per_image", 1)
    for name, row in VARIANTS.items():
        row = row._replace(config=shrink_model(row.config))
        monkeypatch.setitem(VARIANTS, name, row)

    def take(recipe, run_dir):
        if recipe.dataset == "digits":
            recipe = dataclasses.replace(recipe, eval_split="test[:8]")
        if recipe.dataset.startswith(("digits", "folder:", "tfrecord:")):
            return prepare(recipe, run_dir).train()  # They are there.
        recipe = dataclasses.replace(recipe, data_dir=str(made_up))
        with tfds.testing.mock_data(num_examples=8, data_dir=str(made_up)):
            return prepare(recipe, run_dir).train()

    return take


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_recipe_of_each_kind_takes_a_step(name, take_step, request):
    """A new head answers its bias, which gives the loss in closed form."""
    if name != "cifar10_b16":
        # The others compute the same operations one by one.
        request.getfixturevalue("eagerly")
    recipe = shrink(RECIPES[name])
    folder, _, file = str(recipe.init_from).rpartition("/")
    if file == "model.keras":
        before = folder.removeprefix("saved_models/")
        take_step(shrink(RECIPES[before]), f"saved_models/{before}")
    logs = take_step(recipe, "run")
    model = RunFolder(pathlib.Path("run")).load_model()
    assert logs["step"] == 1
    assert model.input_shape[1:3] == (recipe.image_size, recipe.image_size)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    classes, bias = model.output_shape[-1], recipe.head_bias
    loss = {
        "softmax": math.log(classes),
        "sigmoid": classes * math.log1p(math.exp(bias)) - bias,
    }[recipe.loss]
    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    after = keras.ops.convert_to_numpy(model.get_layer("predictions").bias)
    moved = np.abs(after - bias)
    if recipe.optimizer == "adamw":  # Its first update is the rate itself.
        rate = recipe.learning_rate * (1 - recipe.average_decay)
        np.testing.assert_allclose(moved, rate, rtol=0.01)
    else:
        assert 0 < np.linalg.norm(moved) <= recipe.learning_rate


def test_keeping_the_best_and_stopping_early_can_be_turned_off(parse):
    words = ["--recipe=photos_lora", "--dataset=folder:photos"]
    recipe = parse(*words, "--keep_best=false").recipe
    assert (recipe.keep_best, recipe.patience) == (False, None)
    with pytest.raises(ValueError, match="`patience` needs `keep_best`"):
        _ = parse(*words, "--keep_best=false", "--patience=3").recipe
    recipe = parse(*words, "--keep_best", "--patience=0").recipe
    assert (recipe.keep_best, recipe.patience) == (True, 0)


def test_written_out_names_are_those_of_the_tables():
    """The flags list them without importing Keras or TensorFlow."""
    choices = {
        field.name: field.metadata["choices"]
        for field in dataclasses.fields(Recipe)
    }
    for name, table in {
        "model": [*VARIANTS, *BASELINES],
        "pooling": layers.POOLINGS,
        "position_embedding": layers.POSITION_EMBEDDINGS,
        "position_placement": layers.POSITION_PLACEMENTS,
        "mlp_activation": layers.ACTIVATIONS,
        "patch_target": PATCH_TARGETS,
        "distillation_target": TARGETS,
        "loss": LOSSES,
        "optimizer": OPTIMIZERS,
        "schedule": DECAYS,
        "strategy": STRATEGIES | JAX_STRATEGIES,
        "accumulator_dtype": ACCUMULATOR_DTYPES,
        "gradient_dtype": SUM_DTYPES,
    }.items():
        assert set(choices[name]) == set(table), name
    assert set(schema.PARTS) == set(tuning.PARTS)
    assert set(schema.LORA_LAYERS) == set(tuning.LORA_LAYERS)
    assert set(command_line.PROBES) == set(PROBES)
    assert set(command_line.FORMATS) == set(export.FORMATS)
    assert set(command_line.QUANTIZATIONS) == set(export.QUANTIZATIONS)


# bit_hyperrule.py of big_transfer: the end of the warm-up, the updates after
# which the rate of 0.003 falls to a tenth, and the end.
SUPPORTS = {
    "pets_r50x1": (100, 200, 300, 400, 500),
    "cifar10_r50x1": (500, 3_000, 6_000, 9_000, 10_000),
    "imagenet_r50x1": (500, 6_000, 12_000, 18_000, 20_000),
}


def rate_of_bit(supports, step):
    """Return the rate as the code of BiT computes it."""
    if step < supports[0]:
        return 0.003 * step / supports[0]
    return 0.003 * 10.0 ** -sum(support < step for support in supports[1:])


@pytest.mark.parametrize("name", SUPPORTS)
def test_the_learning_rate_is_that_of_the_hyperrule(name):
    recipe, supports = RECIPES[name], SUPPORTS[name]
    assert recipe.total_steps == supports[-1]
    schedule = make_schedule(recipe, recipe.total_steps)
    steps = {1, *range(0, supports[-1], supports[-1] // 50)}
    for support in supports:
        steps |= {support - 1, support, support + 1}
    for step in sorted(steps - {supports[-1] + 1}):
        want = rate_of_bit(supports, step)
        assert float(schedule(step)) == pytest.approx(want, rel=1e-5)


def test_the_rate_of_resnet50_falls_at_the_epochs_of_its_source():
    """Epochs 30, 60 and 80 of 90, of 1,251 updates."""
    recipe = RECIPES["resnet50_i1k"]
    schedule = make_schedule(recipe, 90 * 1_251)
    for epoch, before in ((30, 0.4), (60, 0.04), (80, 0.004)):
        last = epoch * 1_251
        rates = [float(schedule(step)) for step in (last, last + 1)]
        assert rates == pytest.approx([before, before / 10], rel=1e-5)


# arXiv:1912.11370, supplement F.
NOT_FLIPPED = {"dsprites_orientation", "smallnorb_azimuth", "dsprites_location"}
NOT_CROPPED = {"clevr_count", "clevr_distance", "dmlab", "kitti_distance"}
NOT_CROPPED |= {"dsprites_location"}


def augmented(recipe, number=8):
    """Return some versions of an image whose halves and borders differ."""
    rows = tf.linspace(0.0, 250.0, 448)[:, None, None]
    image = tf.repeat(rows / 10 + tf.transpose(rows, (1, 0, 2)) / 2, 3, -1)
    augment = parse_augmentation(recipe.augment, (384, 384))
    return np.stack([augment.image(image, (0, seed)) for seed in range(number)])


@pytest.mark.parametrize("dataset", VTAB_TASKS)
def test_no_task_is_augmented_against_its_labels(dataset):
    task = dataset.partition(":")[2]
    recipe = ChosenRecipe("vtab_l16", {"dataset": dataset}).recipe
    images = augmented(recipe)
    assert images.shape == (8, 384, 384, 3)
    # The image is brighter on the right, unless it is flipped.
    flipped = images[:, 0, 0, 0] > images[:, 0, -1, 0]
    assert flipped.any() == (task not in NOT_FLIPPED)
    assert not flipped.all()
    upright = np.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    is_cropped = np.ptp(upright, axis=0).max() > 1
    assert is_cropped == (task not in NOT_CROPPED)


def test_only_the_augmentation_depends_on_the_task():
    given = {"dataset": "vtab:clevr_count", "total_steps": 500}
    recipe = ChosenRecipe("vtab_l16", given).recipe
    base = RECIPES["vtab_l16"]
    changed = {
        field.name
        for field in flag_fields()
        if getattr(recipe, field.name) != getattr(base, field.name)
    }
    assert changed == {"dataset", "total_steps", "augment"}
    given |= {"augment": "flip_lr"}
    assert ChosenRecipe("vtab_l16", given).recipe.augment == "flip_lr"
    del given["augment"]
    line = RECIPES["pets_b16"].augment
    assert ChosenRecipe("pets_b16", given).recipe.augment == line
