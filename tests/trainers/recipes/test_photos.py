import dataclasses
import math
import pathlib
import re

import numpy as np
import pytest
from absl import flags
from PIL import Image

from trainers.recipes.flags import ChosenRecipe, recipe_from_flags
from trainers.recipes.photos import (
    FITTED_FIELDS,
    MEMORY_FIELDS,
    RULES,
    describe_fit,
    fit_to_images,
)
from trainers.recipes.recipes import RECIPES
from trainers.runs.preparation import count_steps, prepare

ROOT = pathlib.Path(__file__).parents[3]
NUMBERS = (1, 7, 24, 120, 1000, 8000, 80_000, 1_000_000)


def fit(num_images, name="photos", **given):
    recipe = dataclasses.replace(RECIPES[name], **given)
    return fit_to_images(name, recipe, given, num_images)


@pytest.mark.parametrize("given", [{}, {"init_from": "B/16-augreg"}])
@pytest.mark.parametrize("num_images", NUMBERS)
def test_every_number_of_images_can_be_trained_on(num_images, given):
    recipe = fit(num_images, **given)
    steps = math.ceil(
        recipe.epochs * max(round(num_images / recipe.batch_size), 1)
    )
    assert 0 < recipe.warmup_steps < steps
    assert recipe.warmup_steps == math.ceil(steps / 10)
    evaluations = recipe.epochs / recipe.epochs_per_eval
    assert 5 <= evaluations <= 34
    assert 8 <= recipe.batch_size <= 256


def test_more_images_need_larger_batches_and_fewer_epochs():
    tuned = [fit(n, init_from="B/16-augreg") for n in NUMBERS]
    for name, sign in (("batch_size", 1), ("learning_rate", 1), ("epochs", -1)):
        values = [sign * getattr(recipe, name) for recipe in tuned]
        assert values == sorted(values)
        assert len(set(values)) > 3
    # 120 images, by hand: 2^round(log2(12)), 700 / sqrt(120), 3e-5 * sqrt(16).
    found = [getattr(tuned[3], name) for name in FITTED_FIELDS[:4]]
    assert found == [16, 60.0, 48, 1.2e-4]
    found = [getattr(tuned[4], name) for name in FITTED_FIELDS[:4]]
    assert found == [128, 22.0, 18, 3.4e-4]


def test_the_guide_shows_these_settings():
    page = (ROOT / "docs/fine_tune.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \|(.*)\|$", page, re.M)
    assert len(rows) == 5
    for number, cells in rows:
        num_images = int(number.replace(",", ""))
        tuned = fit(num_images, init_from="B/16-augreg")
        want = [getattr(tuned, name) for name in FITTED_FIELDS[:4]]
        assert [float(cell) for cell in cells.split("|")] == [
            *want,
            fit(num_images).epochs,
        ]
        assert fit(num_images).learning_rate == pytest.approx(
            2 * tuned.learning_rate, rel=0.02
        )
    assert f"warm-up: {fit(120).warmup_steps} updates for 120 images" in page


def test_a_new_model_is_trained_longer_with_more_augmentation():
    new, tuned = fit(1000), fit(1000, init_from="B/16-augreg")
    assert new.epochs > 5 * tuned.epochs
    assert new.augment.startswith("inception_crop")
    assert "mixup" in new.augment
    assert "mixup" not in tuned.augment


def test_flags_stay_and_what_depends_on_them_follows():
    recipe = fit(1000, batch_size=32, epochs=4.0, image_size=384)
    assert (recipe.batch_size, recipe.epochs) == (32, 4.0)
    assert recipe.warmup_steps == math.ceil(4 * 31 / 10)
    assert recipe.eval_preprocess == "resize_small(439)|central_crop"
    assert fit(1000, total_steps=50).warmup_steps == 5
    assert fit(1000, total_steps=1).warmup_steps == 0
    assert fit(1000, learning_rate=0.5).learning_rate == 0.5


def test_the_line_of_settings_can_be_typed():
    line = describe_fit(fit(1000, init_from="B/16-augreg"), 1000)
    assert line.startswith("Settings for 1,000 training images: --batch_size=")
    assert "'--augment=inception_crop(smallest=0.35)|flip_lr'" in line
    assert "--epochs=22.0" in line
    assert "--total_steps=9" in describe_fit(fit(1000, total_steps=9), 1000)


def test_a_run_that_continues_keeps_its_settings():
    """Although photos were added to the folder."""
    chosen = ChosenRecipe("photos", {"dataset": "folder:cats"})
    first = chosen.fit(1000, None)
    assert chosen.fit(5000, None) != first
    assert chosen.fit(5000, first) == first
    longer = ChosenRecipe("photos", {"dataset": "folder:cats", "epochs": 400.0})
    assert longer.fit(5000, first).epochs == 400.0


def test_what_the_memory_decides():
    chosen = ChosenRecipe("photos", {"use_remat": False})
    assert chosen.free_fields(None) == {"accumulation_steps"}
    assert ChosenRecipe("photos", {}).free_fields(None) == set(MEMORY_FIELDS)
    assert not chosen.free_fields(RECIPES["photos"])
    assert not ChosenRecipe("digits", {}).free_fields(None)


def test_a_run_that_continues_is_computed_as_before():
    first = dataclasses.replace(
        RECIPES["photos"], accumulation_steps=4, use_remat=True
    )
    assert ChosenRecipe("photos", {}).fit(1000, first) == first
    line = describe_fit(first, 1000)
    assert "--accumulation_steps=4 --use_remat=True" in line
    assert "remat" not in describe_fit(fit(1000), 1000)


@pytest.mark.parametrize("num_replicas", [1, 3, 8, 24])
def test_replicas_and_parts_divide_the_batch(num_replicas):
    for given in ({}, {"accumulation_steps": 5}):
        for num_images in NUMBERS:
            chosen = ChosenRecipe("photos", given)
            size = chosen.fit(num_images, None, num_replicas).batch_size
            whole = chosen.fit(num_images, None).batch_size
            shares = num_replicas * given.get("accumulation_steps", 1)
            assert size % shares == 0
            assert whole <= size < whole + shares
    assert fit(1000, batch_size=10).batch_size == 10


def test_other_recipes_do_not_depend_on_the_number_of_images():
    chosen = ChosenRecipe("digits", {"seed": 3})
    want = dataclasses.replace(RECIPES["digits"], seed=3)
    assert chosen.fit(5, None) == chosen.fit(5000, None) == want


@pytest.mark.parametrize("name", RULES)
def test_the_table_shows_what_holds_for_a_thousand(name):
    assert fit(1000, name) == RECIPES[name]


def test_patience_needs_a_best_model():
    with pytest.raises(ValueError, match="`patience` needs `keep_best`"):
        dataclasses.replace(RECIPES["digits"], patience=3)


@pytest.fixture
def photos(tmp_path):
    """Return a folder with 12 and 4 photos of two classes."""
    draws = np.random.default_rng(0)
    for name, count in (("cat", 12), ("dog", 4)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(count):
            pixels = draws.integers(0, 256, (9, 9, 3), "uint8")
            Image.fromarray(pixels).save(
                tmp_path / f"photos/{name}/{index}.png"
            )
    return tmp_path / "photos"


def test_a_job_is_fitted_to_its_data_set(photos, tmp_path):
    small = {"image_size": 16, "model": "mu/16", "patch_size": 8}
    given = {"dataset": f"folder:{photos}", **small}
    chosen = ChosenRecipe("photos", given)
    job = prepare(chosen.recipe, str(tmp_path / "run"), chosen=chosen)
    num_images = job.dataset.num_examples("train")
    assert job.recipe == chosen.fit(num_images, None)
    assert job.recipe != chosen.recipe
    assert count_steps(job.recipe, job.dataset)[1] == job.total_steps


def parse(line):
    values = flags.FlagValues()
    flags.DEFINE_string("recipe", None, "", flag_values=values)
    for field in dataclasses.fields(type(RECIPES["photos"])):
        flags.DEFINE_string(field.name, None, "", flag_values=values)
    values(["train", *line.split()])
    return recipe_from_flags(values)


@pytest.mark.parametrize("dataset", ["folder:photos", "csv:labels.csv"])
def test_a_folder_of_photos_has_a_recipe_without_its_name(dataset):
    assert parse(f"--dataset={dataset}").name == "photos"
    assert parse(f"--dataset={dataset} --recipe=digits").name == "digits"


@pytest.mark.parametrize("line", ["", "--dataset=cifar10"])
def test_other_data_need_the_name_of_a_recipe(line):
    with pytest.raises(ValueError, match="`recipe` must .*photos, .*digits, "):
        parse(line)
