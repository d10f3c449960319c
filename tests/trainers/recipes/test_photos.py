import dataclasses
import math

import pytest

from tests.trainers.made import write_photos
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.photos import (
    FITTED_FIELDS,
    MEMORY_FIELDS,
    RULES,
    describe_fit,
    fit_to_images,
)
from trainers.recipes.recipes import RECIPES
from trainers.training.trainer import count_steps, prepare

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


def test_a_new_model_is_trained_longer_with_more_augmentation():
    new, tuned = fit(1000), fit(1000, init_from="B/16-augreg")
    assert new.epochs > 5 * tuned.epochs
    assert new.augment.startswith("inception_crop")
    assert "mixup" in new.augment
    assert "mixup" not in tuned.augment


def test_images_of_other_channels_have_no_randaugment():
    whole = fit(1000)
    for channels, is_left_out in ((1, False), (3, False), (4, True), (5, True)):
        recipe = fit(1000, channels=channels)
        assert ("randaugment" not in recipe.augment) == is_left_out
        rest = recipe.augment.replace("randaugment(2, 5)|", "")
        assert rest == whole.augment.replace("randaugment(2, 5)|", "")


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
    assert "'--augment=inception_crop(smallest=0.35)|flip_lr'" in line
    assert "--epochs=22.0" in line and "--batch_size=128" in line
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


@pytest.mark.parametrize("num_replicas", [3, 24])
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


def test_the_table_shows_what_holds_for_a_thousand():
    for name in RULES:
        assert fit(1000, name) == RECIPES[name]


@pytest.fixture
def photos(tmp_path):
    """Return a folder with 12 and 4 photos of two classes."""
    return write_photos(tmp_path / "photos", 12 * ["cat"] + 4 * ["dog"])


def test_a_job_is_fitted_to_its_data_set(photos, tmp_path):
    small = {"image_size": 16, "model": "mu/16", "patch_size": 8}
    given = {"dataset": f"folder:{photos}", **small}
    chosen = ChosenRecipe("photos", given)
    trainer = prepare(chosen.recipe, str(tmp_path / "run"), chosen=chosen)
    num_images = trainer.dataset.num_examples("train")
    fitted = chosen.fit(num_images, None)
    assert trainer.recipe == dataclasses.replace(fitted, labels="one")
    assert trainer.recipe != chosen.recipe
    assert (
        count_steps(trainer.recipe, trainer.dataset)[1] == trainer.total_steps
    )


@pytest.mark.parametrize("dataset", ["folder:photos", "csv:labels.csv"])
def test_a_folder_of_photos_has_a_recipe_without_its_name(parse, dataset):
    assert parse(f"--dataset={dataset}").name == "photos"
    assert parse(f"--dataset={dataset}", "--recipe=digits").name == "digits"


@pytest.mark.parametrize("words", [[], ["--dataset=cifar10"]])
def test_other_data_need_the_name_of_a_recipe(parse, words):
    with pytest.raises(ValueError, match="`recipe` must .*photos, .*digits, "):
        parse(*words)
