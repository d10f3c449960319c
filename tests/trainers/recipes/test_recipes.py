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
from tests.trainers.mocked import write_metadata
from tests.weights.bit_arrays import draw_bit_arrays
from trainers import flags as flag_definitions
from trainers.augment.augmentation import parse_augmentation
from trainers.distribute.strategies import STRATEGIES, SUM_DTYPES
from trainers.evaluation.probing import PROBES
from trainers.models.resnets import BIT_CHECKPOINTS, build_baseline
from trainers.optim.losses import LOSSES, TARGETS
from trainers.optim.rules import ACCUMULATOR_DTYPES, OPTIMIZERS
from trainers.optim.schedules import DECAYS, WarmupSchedule
from trainers.recipes import recipe as schema
from trainers.recipes.baselines import APPLICATIONS, BASELINES, BIT_SIZES
from trainers.recipes.flags import (
    define_recipe_flags,
    flag_fields,
    recipe_from_flags,
)
from trainers.recipes.photos import RULES
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import (
    RECIPES,
    describe_settings,
    describe_sources,
    update_page,
)
from trainers.runs.run import Run
from trainers.train import Job, prepare, train

PAGE = pathlib.Path(__file__).parents[3] / "docs/recipes.md"


@pytest.fixture
def parse(monkeypatch):
    """Return a function from a command line to a recipe."""
    values = flags.FlagValues()
    for kind in ("_string", "_integer", "_float", "_bool", ""):
        define = getattr(flags, f"DEFINE{kind}")
        monkeypatch.setattr(
            flags,
            f"DEFINE{kind}",
            lambda *args, _define=define: _define(*args, flag_values=values),
        )
    define_recipe_flags()

    def parse_line(line):
        values(["train", *line.split()])
        return recipe_from_flags(values).recipe

    return parse_line


@pytest.mark.parametrize("name", RECIPES)
def test_without_other_flags_it_is_the_recipe(parse, name):
    assert parse(f"--recipe={name}") == RECIPES[name]


def test_every_field_but_the_notes_is_a_flag_that_replaces_it(parse):
    """Type by type: the flag's value arrives in the field, others stay."""
    samples = {str: "x", int: 7, float: 0.25, bool: True}
    chosen = {"augment": "flip_lr", "eval_preprocess": "resize(9)"}
    chosen |= {"train_only": "head", "lora_layers": "out", "patch_sizes": "4,6"}
    chosen |= {"milestones": "1/3,0.5"}
    chosen |= {"objective": "classify"}  # Others contradict many fields.
    names = {field.name for field in dataclasses.fields(Recipe)}
    assert names - {f.name for f in flag_fields()} == {"source", "expected"}
    given = {}
    for field in flag_fields():
        kind = next(k for k in samples if k.__name__ in str(field.type))
        choices = field.metadata["choices"]
        want = chosen.get(field.name, samples[kind])
        if choices and field.name not in chosen:
            want = choices[-1]
        changed = parse(f"--recipe=digits --{field.name}={want}")
        assert getattr(changed, field.name) == want
        given[field.name] = want  # The parser keeps what it has seen.
        assert changed == dataclasses.replace(RECIPES["digits"], **given)


def test_epochs_win_over_the_steps_of_a_recipe(parse, monkeypatch):
    steps = dataclasses.replace(RECIPES["digits"], total_steps=50)
    monkeypatch.setitem(RECIPES, "digits", steps)
    assert parse("--recipe=digits --epochs=2").total_steps is None


@pytest.mark.parametrize(
    "line, message",
    [
        ("--optimizer=adams", "adamw"),
        ("--model=B/17", "Ti/16"),
        ("--batch_size=many", "batch_size"),
        ("--recipe=digit", "digits"),
    ],
)
def test_mistyped_values_are_refused_with_what_is_known(parse, line, message):
    with pytest.raises(
        flags.IllegalFlagValueError, match=message.replace("|", r"\|")
    ):
        parse(line)


def test_mistyped_flag_gets_a_suggestion(parse):
    with pytest.raises(flags.UnrecognizedFlagError, match="learning_rate"):
        parse("--lerning_rate=1")


@pytest.mark.parametrize(
    "field, value",
    [
        ("batch_size", 0),
        ("epochs", -1.0),
        ("epochs", float("inf")),
        ("total_steps", 0),
    ],
)
def test_numbers_that_make_no_sense_are_refused(field, value):
    with pytest.raises(
        ValueError, match=f"`{field}` must be positive.*{value}"
    ):
        dataclasses.replace(RECIPES["digits"], **{field: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_number_must_be_finite(value):
    floats = [f.name for f in flag_fields() if "float" in str(f.type)]
    assert "head_bias" in floats
    for name in floats:
        message = f"`{name}` must be .*Received: {name}={value}"
        with pytest.raises(ValueError, match=message):
            Recipe(**{name: value})


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_keras_does_not_take_is_refused(seed):
    message = rf"`seed` must be in \[0, 2\*\*32\)\. Received: seed={seed}"
    with pytest.raises(ValueError, match=message):
        Recipe(seed=seed)
    keras.utils.set_random_seed(Recipe(seed=2**32 - 1).seed)


@pytest.mark.parametrize(
    "field, value, rule",
    [
        ("total_steps", "six", "a whole number"),
        ("total_steps", 6.5, "a whole number"),
        ("batch_size", None, "a whole number"),
        ("seed", True, "a whole number"),
        ("learning_rate", "1e-3", "a number"),
        ("use_xla", 1, "true or false"),
        ("optimizer", ["adamw"], "text"),
    ],
)
def test_values_of_another_type_are_refused(field, value, rule):
    """A file may hold them."""
    with pytest.raises(ValueError, match=f"`{field}` must be {rule}. Received"):
        Recipe(**{field: value})


def test_numbers_of_numpy_and_whole_rates_are_numbers():
    recipe = Recipe(batch_size=np.int64(8), epochs=2, total_steps=None)
    assert (recipe.batch_size, recipe.epochs) == (8, 2)


def test_augmentation_is_read_at_once():
    with pytest.raises(ValueError, match="`augment`.* must be one of"):
        Recipe(augment="flip").check_operations()


def test_unknown_name_is_refused_in_python_too():
    with pytest.raises(ValueError, match="`schedule` must be one of 'cosine'"):
        Recipe(schedule="step")


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_decay": -1.0},
        {"clip_norm": -1.0},
        {"warmup_steps": -1},
        {"log_attention": -1},
        {"label_smoothing": 1.0},
    ],
    ids=str,
)
def test_numbers_out_of_their_range_are_refused(changes):
    [name] = changes
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        Recipe(**changes)


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
    "augreg_i21k_ti16": I21K
    | BIG_VISION
    | SIGMOID
    | {"model": "Ti/16", "weight_decay": 0.03, "augment": CROP},
    "augreg_i21k_b32": I21K
    | BIG_VISION
    | SIGMOID
    | {"augment": f"{CROP}|randaugment(2, 10)|mixup(0.2)"}
    | {"model": "B/32", "weight_decay": 0.1, "dropout_rate": 0.0},
    "augreg_i21k_b16": I21K
    | BIG_VISION
    | SIGMOID
    | {"augment": f"{CROP}|randaugment(2, 15)|mixup(0.2)"}
    | {"model": "B/16", "weight_decay": 0.1, "dropout_rate": 0.0},
    "augreg_i21k_l16": I21K
    | BIG_VISION
    | SIGMOID
    | {"augment": f"{CROP}|randaugment(2, 20)|mixup(0.5)"}
    | {"model": "L/16", "weight_decay": 0.1, "dropout_rate": 0.0},
    "augreg_i21k_r50_l32": I21K
    | BIG_VISION
    | SIGMOID
    | {"augment": f"{CROP}|randaugment(2, 15)|mixup(0.2)"}
    | {"model": "R50+L/32", "weight_decay": 0.1, "dropout_rate": 0.1}
    | {"stochastic_depth_rate": 0.1},
    # Configurations of big_vision, `wd` being 1e-4.
    "augreg_i21k_b16_gap": I21K
    | BIG_VISION
    | SIGMOID
    | {"augment": f"{CROP}|randaugment(2, 10)|mixup(0.2)"}
    | {"weight_decay": 1e-4 / 1e-3, "representation_size": None},
    "augreg_i1k_b16": PAPER
    | BIG_VISION
    | SIGMOID
    | {"augment": f"{CROP}|randaugment(2, 15)|mixup(0.5)"}
    | {"weight_decay": 1e-4 / 1e-3, "representation_size": 768}
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
    "augreg_finetune_cifar10_b32": TUNING
    | steps(10_000, 500, 0.003)
    | {"augment": "resize_small(448)|random_crop|flip_lr"}
    | {"train_split": "train[:98%]"},
    "augreg_finetune_cifar100_b32": TUNING
    | steps(10_000, 500, 0.01)
    | {"augment": "resize_small(448)|random_crop|flip_lr"}
    | {"train_split": "train[:98%]"},
    "augreg_finetune_pets_b32": TUNING
    | steps(500, 100, 0.003)
    | {"augment": CROP, "train_split": "train[:90%]"},
    "augreg_finetune_flowers_b32": TUNING
    | steps(500, 100, 0.003)
    | {"augment": CROP, "train_split": "train[:90%]"},
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
# What others begin from, and end with (table 5, README, transfer.py).
RESULTS = {
    "mae_b16": "B/16: 83.6 %",
    "mae_l16": "L/16: 85.5 %",
    "mae_finetune_b16": "B/16: 83.664 %",
    "mae_finetune_l16": "L/16: 85.952 %",
    "i21k_b16": "B/16: 47.88 %",
    "i21k_b32": "B/32: 81.28 %",
    "i21k_l16": "L/16: 85.15 %",
    "i21k_l32": "L/32: 80.99 %",
    "i1k_b16": "B/16: 74.79 %",
    "i1k_b32": "B/32: 69.19 %",
    "i1k_l16": "L/16: 72.59 %",
    "i1k_l32": "L/32: 66.90 %",
    "imagenet_b16": "B/16: 83.97 %",
    "imagenet_l16_512": "L/16: 85.30 %",
    "cifar10_b16": "B/16: 98.95 %",
    "cifar10_b16_500steps": "B/16: 98.59 %",
    "cifar10_b16_1000steps": "B/16: 98.86 %",
    "cifar10_b32_100steps": "B/32: 97.7 %",
    "cifar100_b16": "B/16: 91.67 %",
    "cifar100_b16_500steps": "B/16: 89.17 %",
    "cifar100_b16_1000steps": "B/16: 91.15 %",
    "pets_b16": "B/16: 94.43 %",
    "flowers_b16": "B/16: 99.38 %",
    "vtab_l16": "L/16: 84.1 % on CIFAR-100",
    "pets_r50x1": "BiT-M-R50x1: no figure",
    "cifar10_r50x1": "BiT-M-R50x1: 97.4 %",
    "imagenet_r50x1": "BiT-M-R50x1: 80.68 %",
    "augreg_i21k_ti16": "Ti/16: 78.22 %",
    "augreg_i21k_b32": "B/32: 83.59 %",
    "augreg_i21k_b16": "B/16: 85.49 %",
    "augreg_i21k_l16": "L/16: 85.59 %",
    "augreg_i21k_r50_l32": "R50+L/32: 85.99 %",
    "augreg_i1k_b16": "B/16: 79.84 %",
    "s16_i1k_90ep": "S/16: 76.5 %",
    "s16_i1k_150ep": "S/16: 78.5 %",
    "s16_i1k_300ep": "S/16: 80.0 %",
    "augreg_finetune_imagenet_b16": "B/16: 85.49 %",
    "augreg_finetune_imagenet_b32": "B/32: 83.27 %",
    "augreg_finetune_cifar10_b32": "B/32: 98.55 %",
    "augreg_finetune_cifar100_b32": "B/32: 91.35 %",
    "augreg_finetune_pets_b32": "B/32: 93.78 %",
    "augreg_finetune_flowers_b32": "B/32: 99.43 %",
}
OURS = [
    "digits",
    "digits_exact",
    "flexi_digits",
    "mpp_digits",
    "mae_digits",
    "digits_pretrain",
    "digits_transfer",
]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_source(name):
    recipe = RECIPES[name]
    got = {field: getattr(recipe, field) for field in FIGURES[name]}
    assert got == pytest.approx(FIGURES[name])


def test_every_recipe_of_others_is_compared_with_its_source():
    assert set(RECIPES) - set(FIGURES) == {*OURS, *RULES, "cifar10"}


@pytest.mark.parametrize("name", RESULTS)
def test_expected_results_are_those_of_the_source(name):
    recipe = RECIPES[name]
    assert recipe.expected.startswith(RESULTS[name])
    # That of the model that the recipe is about.
    model = RESULTS[name].partition(":")[0]
    before = recipe_before(recipe)
    recipe = RECIPES[before] if before else recipe
    assert (recipe.init_from or recipe.model).startswith(model)


def recipe_before(recipe):
    """Return the name of the recipe whose run a recipe starts from, or None."""
    folder, _, file = str(recipe.init_from).rpartition("/")
    is_run = file == "model.keras"
    return folder.removeprefix("saved_models/") if is_run else None


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_where_it_is_from_and_what_was_run(name):
    recipe = RECIPES[name]
    assert recipe.source
    assert recipe.expected.endswith("Not run here.") == (
        name not in {*OURS, *RULES}
    )
    assert "|" not in recipe.source + recipe.expected  # Cells of a table.


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


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_fits_its_model_at_full_size(name):
    """Checked as the model would check it, without its weights."""
    recipe = RECIPES[name]
    if recipe.model in BASELINES or str(recipe.init_from).endswith(".keras"):
        return
    if recipe.init_from:
        name = recipe.init_from
        variant = VARIANTS[name.rpartition("-")[0]]  # Of one on the hub.
        config = PRETRAINED.get(name, variant).config
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
    assert min(config.grid_size) >= 4
    assert hidden in (None, config.width)


@pytest.mark.parametrize("name", RECIPES)
def test_images_come_out_at_the_size_of_the_recipe(name):
    """Except images of 8 and 32 pixels, which are resized afterwards."""
    recipe = RECIPES[name]
    image = np.random.default_rng(0).uniform(0, 255, (300, 250, 3))
    size = (recipe.image_size, recipe.image_size)
    for text in (recipe.augment, recipe.eval_preprocess):
        function = parse_augmentation(text, size).image
        if recipe.image_size >= 224 and text:
            result = function(tf.constant(image, tf.float32), (0, 1))
            assert tuple(result.shape) == (*size, 3)


def test_the_page_shows_the_recipes():
    for table in (describe_settings(), describe_sources()):
        assert table in PAGE.read_text(), "run the command of the page"
        rows = re.findall(r"^\| `(\w+)` \|", table, re.M)
        assert rows == list(RECIPES)


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


def test_a_page_without_the_table_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    with pytest.raises(ValueError, match="`path` must be a page with a table"):
        update_page(page)


# A step of each.

RECORDS = ("imagenet21k",)  # Data sets of TFRecord files.


def shrink(recipe: Recipe) -> Recipe:
    """Reduce all sizes that take time; the mathematics of an update stay."""
    if recipe.model in BASELINES and not recipe.init_from:
        # Without a warm-up its rate would blow it up.
        recipe = dataclasses.replace(
            recipe, image_size=32, learning_rate=1e-3, final_fraction=0.0
        )
        if recipe.model in BIT_SIZES:
            recipe = dataclasses.replace(recipe, model="R14x0.25-small")
    elif recipe.init_from in BIT_CHECKPOINTS:
        recipe = dataclasses.replace(recipe, image_size=32)
    elif recipe.image_size == 224 and not recipe.init_from:
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
        # What a step does not depend on: recipes that differ in nothing else
        # are equal now.
        epochs=1.0,
        source="",
        expected="",
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


def small_network(weights, input_shape, classes, classifier_activation):
    """Stand for a network of keras.applications, which takes long to trace."""
    assert weights is None
    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Conv2D(8, 3, strides=4),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(classes, classifier_activation),
        ]
    )


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_baseline_answers_logits_in_the_precision_asked_for(name):
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
    for name in ("cifar10", "oxford_flowers102", "oxford_iiit_pet"):
        write_metadata(name, ["train", "test"], folder)
    sizes = {"train": 50_000, "test": 10_000}  # Of VTAB's CIFAR-100.
    write_metadata("cifar100", ["train", "test"], folder, **sizes)
    write_metadata("imagenet2012", ["train", "validation"], folder)
    for name in RECORDS:
        write_records(folder / name, num_classes=9)
    for name in {r.init_from for r in RECIPES.values()} & set(PRETRAINED):
        config = PRETRAINED[name].config
        hidden = config.representation_size and 32
        config = shrink_model(config, num_classes=3, representation_size=hidden)
        path = folder / "cache" / PRETRAINED[name].file
        path.parent.mkdir(parents=True, exist_ok=True)
        keras_vit.save_checkpoint(keras_vit.VisionTransformer(config), path)
    for name in {r.init_from for r in RECIPES.values()} & set(HUB_MODELS):
        config = VARIANTS[name.rpartition("-")[0]].config
        config = shrink_model(config, num_classes=0, activation="exact")
        path = folder / "cache/huggingface" / HUB_MODELS[name].repository
        model = keras_vit.VisionTransformer(config)
        keras_vit.save_checkpoint(model, path, layout="timm")
        for file in DESCRIPTIONS:  # As if the repository had none.
            (path / f".no_{file}").touch()
    for name in {r.init_from for r in RECIPES.values()} & set(BIT_CHECKPOINTS):
        path = folder / "cache" / BIT_CHECKPOINTS[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **draw_bit_arrays((1, 1), factor=0.5))
    return folder


def write_records(folder, num_classes):
    """Write the TFRecord files of a data set of 8 images."""
    folder.mkdir()
    names = (f"class {index}\n" for index in range(num_classes))
    (folder / "labels.txt").write_text("".join(names))
    noise = np.random.default_rng(0).integers(0, 255, (8, 40, 30, 3), "uint8")
    for split in ("train", "test"):
        with tf.io.TFRecordWriter(str(folder / f"{split}-0")) as writer:
            for label, image in enumerate(noise):
                example = tf.train.Example()
                features = example.features.feature
                encoded = tf.io.encode_jpeg(image).numpy()
                features["image/encoded"].bytes_list.value.append(encoded)
                features["image/class/label"].int64_list.value.append(label)
                writer.write(example.SerializeToString())


def make_photos(folder):
    """Write a folder with as many images of one class as of the other."""
    noise = np.random.default_rng(0).integers(0, 255, (8, 40, 30, 3), "uint8")
    for index, image in enumerate(noise):
        split = "train" if index < 6 else "test"
        place = folder / split / ("cat", "dog")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(place / f"{index}.png", image)


@pytest.fixture
def take_step(made_up, tmp_path, monkeypatch):
    """Return a function that makes one update of a recipe, in small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(made_up / "cache"))
    for name in RECORDS:
        (tmp_path / name).symlink_to(made_up / name)
    make_photos(tmp_path / "photos")
    # Takes as long as the step itself, and has tests of its own.
    monkeypatch.setattr(Job, "flops_per_image", 1)
    for name in APPLICATIONS:
        monkeypatch.setattr(keras.applications, name, small_network)
    for name, row in VARIANTS.items():
        row = row._replace(config=shrink_model(row.config))
        monkeypatch.setitem(VARIANTS, name, row)

    def take(recipe, run_dir):
        # The others have no more than 8 images.
        if re.match("digits|.*cifar100$", recipe.dataset):
            recipe = dataclasses.replace(recipe, eval_split="test[:8]")
        if recipe.dataset.startswith(("digits", "folder:", "tfrecord:")):
            return train(prepare(recipe, run_dir))  # They are there.
        recipe = dataclasses.replace(recipe, data_dir=str(made_up))
        with tfds.testing.mock_data(num_examples=8, data_dir=str(made_up)):
            return train(prepare(recipe, run_dir))

    return take


def graph_of(recipe):
    """Return the settings that the graph of a small update depends on."""
    switches = ("average_decay", "clip_norm", "dropout_rate", "weight_decay")
    switches += ("label_smoothing", "stochastic_depth_rate")
    switches += ("representation_size",)
    names = ("optimizer", "loss", "schedule", "accumulator_dtype")
    row = PRETRAINED.get(recipe.init_from) or VARIANTS.get(recipe.model)
    config = row and shrink_model(row.config, num_classes=0)
    return (
        *(bool(getattr(recipe, name)) for name in switches),
        *(getattr(recipe, name) for name in names),
        recipe.position_embedding,
        recipe.objective,
        row and (config.pooling, config.stem_stages, config.use_class_token),
    )


def first_with_each_part(names):
    """Return the first names whose graphs have, together, every part of all."""
    seen, first = set(), []
    for name in names:
        parts = set(enumerate(graph_of(RECIPES[name])))
        if not parts <= seen:
            first.append(name)
            seen |= parts
    return first


DISTINCT = {shrink(recipe): name for name, recipe in RECIPES.items()}.values()
# The others compute the same operations one by one.
COMPILED = first_with_each_part(DISTINCT)
QUICK = ("i21k_b16", "cifar10_b16", "s16_i1k_300ep")


@pytest.mark.filterwarnings("ignore:.*does not apply to tf.data functions")
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in QUICK
        else pytest.param(name, marks=pytest.mark.slow(15))
        for name in DISTINCT
    ],
)
def test_every_recipe_takes_a_step(name, take_step, request):
    """A new head answers its bias, which gives the loss in closed form."""
    if name not in COMPILED:
        request.getfixturevalue("eagerly")
    recipe = shrink(RECIPES[name])
    before = recipe_before(recipe)
    if before:
        take_step(shrink(RECIPES[before]), f"saved_models/{before}")
    logs = take_step(recipe, "run")
    model = Run(pathlib.Path("run")).load_model()
    assert logs["step"] == 1
    assert model.input_shape[1:3] == (recipe.image_size, recipe.image_size)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    if recipe.model in BASELINES or name == "digits_transfer":
        return  # No head of zeros.
    if not recipe.needs_labels:
        assert model.config.num_classes == 0  # The encoder.
        return
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


@pytest.mark.parametrize("name", ["photos", "photos_linear", "photos_lora"])
def test_keeping_the_best_and_stopping_early_can_be_turned_off(parse, name):
    line = f"--recipe={name} --dataset=folder:photos --keep_best=false"
    recipe = parse(line)
    assert (recipe.keep_best, recipe.patience) == (False, None)
    recipe = parse(
        f"--recipe={name} --dataset=folder:x --keep_best --patience=0"
    )
    assert (recipe.keep_best, recipe.patience) == (True, 0)
    with pytest.raises(ValueError, match="`patience` needs `keep_best`"):
        parse(f"{line} --patience=3")


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
        "strategy": STRATEGIES,
        "accumulator_dtype": ACCUMULATOR_DTYPES,
        "gradient_dtype": SUM_DTYPES,
    }.items():
        assert set(choices[name]) == set(table), name
    assert set(schema.PARTS) == set(tuning.PARTS)
    assert set(schema.LORA_LAYERS) == set(tuning.LORA_LAYERS)
    assert set(flag_definitions.PROBES) == set(PROBES)
    assert set(flag_definitions.FORMATS) == set(export.FORMATS)
    assert set(flag_definitions.QUANTIZATIONS) == set(export.QUANTIZATIONS)
