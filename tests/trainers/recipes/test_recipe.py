"""The values that a recipe takes, and those that it refuses by name."""

import math
import shlex

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.recipes.flags import NoRecipeError, choose_recipe, flag_fields
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.train import recipe_of_command, train
from trainers.training.run_folder import RunFolder


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"batch_size": 0}, "`batch_size` must be positive.*0"),
        ({"epochs": -1.0}, "`epochs` must be positive"),
        ({"total_steps": 0}, "`total_steps` must be positive"),
        ({"weight_decay": -1.0}, "`weight_decay` must be"),
        ({"clip_norm": -1.0}, "`clip_norm` must be"),
        ({"warmup_steps": -1}, "`warmup_steps` must be"),
        ({"log_attention": -1}, "`log_attention` must be"),
        ({"label_smoothing": 1.0}, "`label_smoothing` must be"),
        ({"distillation_weight": 1.5}, "`distillation_weight` must be in"),
        ({"seed": -1}, "`seed` must be in"),
        ({"seed": 2**32}, "`seed` must be in"),
        ({"schedule": "step"}, "`schedule` must be one of 'cosine'"),
        ({"patience": 3}, "`patience` needs `keep_best`"),
        # A file may hold values of another type.
        ({"total_steps": "six"}, "`total_steps` must be a whole number"),
        ({"total_steps": 6.5}, "`total_steps` must be a whole number"),
        ({"batch_size": None}, "`batch_size` must be a whole number"),
        ({"seed": True}, "`seed` must be a whole number"),
        ({"learning_rate": "1e-3"}, "`learning_rate` must be a number"),
        ({"use_xla": 1}, "`use_xla` must be true or false"),
        ({"optimizer": ["adamw"]}, "`optimizer` must be text"),
        ({"train_only": "heads"}, "`train_only` must be one of 'head'"),
        ({"train_only": "last_blocks:-1"}, "`train_only` must be one of"),
        ({"train_only": "all,head"}, "`train_only` must be 'all', or parts"),
        ({"train_only": "last_blocks:1,last_blocks:2"}, "at most one last_bl"),
        ({"lora_rank": -1}, "`lora_rank` must be 0 or more"),
        ({"lora_layers": "qkv,mlp"}, "`lora_layers` must be one of.*'mlp'"),
        ({"lora_layers": ""}, "`lora_layers` must be one of"),
        ({"lora_alpha": 0.0}, "`lora_alpha` must be positive"),
        ({"lora_alpha": 2.0}, "`lora_alpha` needs a positive `lora_rank`"),
        ({"lora_layers": "head"}, "`lora_layers` needs a positive"),
        ({"lora_rank": 2, "train_only": "all"}, "`train_only`.*with LoRA"),
        ({"lora_rank": 2, "train_only": "last_blocks:1"}, "lora_rank=2"),
        ({"model": "ResNet50", "train_only": "head"}, "ResNet50"),
        ({"model": "ResNet50", "lora_rank": 2}, "ResNet50"),
        ({"patch_sizes": "4,x"}, "`patch_sizes` must be numbers.*'4,x'"),
        ({"patch_sizes": "0"}, "`patch_sizes` must be numbers"),
        ({"patch_sizes": "4", "pooling": "distilled"}, "do not go together"),
        ({"mask_ratio": 1.5, "objective": "autoencoder"}, "`mask_ratio` must"),
        ({"teacher": "run", "objective": "autoencoder"}, "`teacher` needs"),
        ({"lora_rank": 2, "objective": "autoencoder"}, "`lora_rank` needs"),
        ({"model": "ResNet50", "objective": "autoencoder"}, "Vision Transf"),
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_number_must_be_finite(value):
    floats = [f.name for f in flag_fields() if "float" in str(f.type)]
    assert "head_bias" in floats
    for name in floats:
        with pytest.raises(ValueError, match=f"`{name}` must be .*{value}"):
            Recipe(**{name: value})


def test_numbers_of_numpy_and_whole_rates_are_numbers():
    recipe = Recipe(batch_size=np.int64(8), epochs=2, seed=2**32 - 1)
    assert (recipe.batch_size, recipe.epochs) == (8, 2)
    keras.utils.set_random_seed(recipe.seed)


def test_augmentation_is_read_at_once():
    with pytest.raises(ValueError, match="`augment`.* must be one of"):
        Recipe(augment="flip").check_operations()


@pytest.mark.parametrize(
    "text, parts, num_last_blocks",
    [
        (None, [], 0),
        ("norms, biases,head", ["norms", "biases", "head"], 0),
        ("positions,last_blocks:12", ["positions"], 12),
    ],
)
def test_parts_and_blocks(text, parts, num_last_blocks):
    recipe = Recipe(train_only=text)
    assert recipe.trained_parts == (parts, num_last_blocks)


def test_layers_of_lora_patches_and_milestones():
    assert Recipe().lora_layer_names == ["qkv", "out"]
    recipe = Recipe(lora_rank=2, lora_layers="mlp_out, head")
    assert recipe.lora_layer_names == ["mlp_out", "head"]
    assert Recipe().patch_size_list == ()
    assert Recipe(patch_sizes="8, 2,4").patch_size_list == (8, 2, 4)
    shares = Recipe(milestones="0.3, 1/2,8/10").milestone_shares
    assert shares == (0.3, 0.5, 0.8)


@pytest.mark.parametrize(
    "text", ["", "0.3,,0.6", "half", "1/0", "nan", "0.6,0.3", "30,60"]
)
def test_other_milestones_are_refused(text):
    with pytest.raises(ValueError, match="`milestones` must"):
        Recipe(milestones=text)


def test_what_follows_from_the_photos_is_kept_by_the_run(parse):
    words = ["--recipe=photos_lora", "--dataset=folder:my photos"]
    recipe = parse(*words).fit(77, None)
    assert recipe.batch_size != RECIPES["photos_lora"].batch_size
    assert parse(*words).fit(120, recipe) == recipe


def test_a_run_alone_is_told_the_command_that_goes_on(
    trained, parse, monkeypatch
):
    values = {"run_dir": str(trained), "recipe": None}
    monkeypatch.setattr("trainers.train.FLAGS", type("F", (), values))

    def refuse():
        raise NoRecipeError("`recipe` must be given, unless")

    monkeypatch.setattr("trainers.train.recipe_flags.recipe_from_flags", refuse)
    with pytest.raises(ValueError, match="go on with a run") as raised:
        recipe_of_command()
    line = str(raised.value).split("keras-vit train ")[1].split(". Rec")[0]
    recipe, run_dir = shlex.split(line)
    assert run_dir == f"--run_dir={trained}"
    assert parse(recipe).recipe == RunFolder(trained).load_recipe()
    values = {"run_dir": str(trained / "absent"), "recipe": None}
    monkeypatch.setattr("trainers.train.FLAGS", type("F", (), values))
    with pytest.raises(ValueError, match="unless$"):
        recipe_of_command()


def test_another_fault_of_a_command_without_a_recipe_is_named(
    trained, parse, monkeypatch
):
    values = {"run_dir": str(trained), "recipe": None}
    monkeypatch.setattr("trainers.train.FLAGS", type("F", (), values))
    monkeypatch.setattr(
        "trainers.train.recipe_flags.recipe_from_flags",
        lambda: parse("--dataset=folder:photos", "--mask_ratio=0.5"),
    )
    with pytest.raises(ValueError, match="`mask_ratio` has no effect"):
        recipe_of_command()


def test_the_recipe_of_a_run_in_a_bucket_is_read(trained, parse):
    folder = tf.io.gfile.join("ram://runs", "mine")
    tf.io.gfile.makedirs(folder)
    tf.io.gfile.copy(f"{trained}/recipe.json", f"{folder}/recipe.json", True)
    found = parse(f"--recipe={folder}/recipe.json")
    assert found.recipe == RunFolder(trained).load_recipe()
    assert found.name == "mine"


@pytest.mark.parametrize("dataset", ["pairs:rooms", "folder:rooms", "nyu"])
def test_the_objective_chooses_the_recipe_of_maps(dataset):
    given = {"dataset": dataset, "objective": "depth"}
    assert choose_recipe(None, given).name == "depth_linear"
    given["objective"] = "segment"
    assert choose_recipe(None, given).name == "segment_linear"


def test_a_recipe_in_python_takes_epochs_as_the_command_does(monkeypatch):
    chosen = []
    monkeypatch.setattr(
        "trainers.train.prepare_and_check",
        lambda choice, *rest, **more: chosen.append(choice) or 1 / 0,
    )
    recipe = RECIPES["pets_b16"]
    assert recipe.total_steps
    with pytest.raises(ZeroDivisionError):
        train(recipe, epochs=3)
    [choice] = chosen
    assert choice.recipe.epochs == 3 and choice.recipe.total_steps is None
