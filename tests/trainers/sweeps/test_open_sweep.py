"""The errors of opening a sweep, and the recipes of its runs."""

import dataclasses
import math

import keras
import numpy as np
import pytest

from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipes import RECIPES
from trainers.sweeps.sweeping import Case, Trial, open_sweep, save_report
from trainers.training.run_folder import RunFolder

DIGITS = RECIPES["digits"]


@pytest.fixture
def started(tmp_path):
    """Return the folder of a sweep that has begun."""
    begin(open_sweep(DIGITS, str(tmp_path), learning_rates=(0.1, 0.2)))
    return tmp_path


def begin(sweep, trials=()):
    """Write the files that a sweep writes before its first run."""
    sweep.run.save_recipe(sweep.recipe, sweep.dataset.class_names)
    save_report(sweep, trials)


@pytest.mark.parametrize(
    "choices, message",
    [
        ({"learning_rates": ()}, "`learning_rates` must be different pos"),
        ({"learning_rates": (0.1, math.nan)}, "`learning_rates` .*=0.1,nan"),
        ({"learning_rates": (0.1, 0.1)}, "`learning_rates` .*=0.1,0.1"),
        ({"num_seeds": 0}, "`num_seeds` must be 1 or more.*num_seeds=0"),
    ],
)
def test_choices_that_are_not_possible_are_refused(tmp_path, choices, message):
    with pytest.raises(ValueError, match=message):
        open_sweep(DIGITS, str(tmp_path), **choices)


def test_no_folder_of_a_sweep_and_no_labels_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`objective` must be classify.*autoe"):
        open_sweep(RECIPES["mae_digits"], str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="`sweep_dir` must be a folder.*file"):
        open_sweep(DIGITS, str(tmp_path / "file"))
    run = RunFolder(tmp_path / "run")
    run.save_recipe(DIGITS, ["a", "b"])
    run.checkpoints_path.mkdir()
    with pytest.raises(ValueError, match="`sweep_dir` must not be the folder"):
        open_sweep(DIGITS, str(run))


@pytest.mark.parametrize(
    "changes, choices, message",
    [
        ({"weight_decay": 0.3}, {}, "weight_decay: 0.05 there, 0.3 here$"),
        ({}, {"held_out": "100"}, r"held_out: 'train\[1298:1442\]' there, 'tr"),
        ({"dataset": "digits_0to4"}, {}, "class_names: .* there, .* here$"),
    ],
)
def test_another_sweep_is_not_continued(started, changes, choices, message):
    recipe = dataclasses.replace(DIGITS, **changes)
    with pytest.raises(ValueError, match=f"sweep of another.*{message}"):
        open_sweep(recipe, str(started), **choices)


def test_rates_seeds_and_devices_may_change(started):
    recipe = dataclasses.replace(DIGITS, strategy="mirrored")
    for choices in ({"learning_rates": (0.1, 0.3)}, {"num_seeds": 9}):
        open_sweep(recipe, str(started), **choices)


@pytest.mark.parametrize("text", ["", '{"trials": [{"seed": 1}]}'])
def test_a_damaged_report_is_named(started, text):
    (started / "sweep.json").write_text(text)
    with pytest.raises(
        ValueError, match="sweep.json is not what was.*another fol"
    ):
        open_sweep(DIGITS, str(started))


def test_the_runs_differ_in_rate_seed_and_images(tmp_path):
    """And none chooses its model by images of the test."""
    recipe = dataclasses.replace(DIGITS, seed=5, keep_best=True, patience=3)
    sweep = open_sweep(recipe, str(tmp_path), held_out="442")
    choice = sweep.recipe_of(Case("choice", 0.5, 5))
    recipe = dataclasses.replace(recipe, keep_best=False, patience=None)
    assert choice == dataclasses.replace(
        recipe,
        learning_rate=0.5,
        train_split="train[0:1000]",
        eval_split="train[1000:1442]",
    )
    report = sweep.recipe_of(Case("report", 0.5, 7))
    assert report == dataclasses.replace(recipe, learning_rate=0.5, seed=7)


def test_runs_have_the_settings_of_all_images_they_will_train_on(tmp_path):
    """Of the recipe `photos`, whose settings follow from their number."""
    for index in range(200):
        path = tmp_path / "photos" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(
            path, np.full((2, 2, 3), index, "uint8"), scale=False
        )
    data = {"dataset": f"folder:{tmp_path / 'photos'}"}
    chosen = ChosenRecipe("photos", {**data, "use_remat": True})
    sweep = open_sweep(
        chosen.recipe, str(tmp_path / "sweep"), held_out="50%", chosen=chosen
    )
    number = sweep.dataset.num_examples("train")
    whole = chosen.fit(number, None)
    assert whole.batch_size != chosen.fit(number // 2, None).batch_size
    rates = [whole.learning_rate * x for x in (1 / 3, 1, 3)]
    assert sweep.grid.learning_rates == pytest.approx(rates, rel=0.02)
    recipe = sweep.recipe_of(Case("choice", 0.5, 0))
    choice = sweep.choice_of(recipe)
    fitted = choice.fit(number // 2, None)
    assert fitted == recipe and fitted.batch_size == whole.batch_size
    assert fitted.epochs == whole.epochs and fitted.learning_rate == 0.5
    assert choice.free_fields(None) == {"accumulation_steps"}


def test_the_best_rate_is_that_of_the_current_grid(tmp_path):
    """A rate that was tried earlier, and is not any more, is not chosen."""
    earlier = [Trial("choice", rate, 0, rate, 1.0) for rate in (0.1, 0.9)]
    begin(open_sweep(DIGITS, str(tmp_path), learning_rates=(0.1,)), earlier)
    sweep = open_sweep(DIGITS, str(tmp_path), learning_rates=(0.1, 0.2))
    assert sweep.best_rate([]) is None and sweep.best_rate(earlier[:1]) is None
    done = [earlier[0], Trial("choice", 0.2, 0, 0.05, 1.0)]
    assert sweep.best_rate(done) == 0.1
