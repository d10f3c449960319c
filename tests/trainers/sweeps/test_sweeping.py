"""Sweeps: their plan, the recipes of their runs, and known results."""

import csv
import dataclasses
import json
import math
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.made import write_photos, write_records
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.data.splits import count_split
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.sweeps import sweeping
from trainers.sweeps.sweeping import (
    GRIDS,
    HELD_OUT,
    Case,
    Trial,
    check_classes_held_out,
    choose_grid,
    hold_out,
    open_sweep,
    run_sweep,
    save_report,
)
from trainers.training.loop import NonFiniteLossError
from trainers.training.run_folder import RunFolder

DIVERGES = "diverges"
# Rate -> accuracy and loss on the held-out images.
ANSWERS = {
    0.1: (0.5, 1.0),
    0.2: (0.75, 0.9),
    0.3: (0.75, 0.8),
    0.4: (0.75, 0.85),
    0.5: DIVERGES,
    0.6: (0.9, 2.0),
}


class Trainer:
    """Stands for a training, one of whose images cannot be read."""

    memory_plan = "fits"
    loop = types.SimpleNamespace()
    bad_examples = types.SimpleNamespace(names=["bad.jpg"])

    def __init__(self, case):
        self.case = case


@pytest.fixture
def trained(monkeypatch):
    """Return the list of the cases that are "trained"."""
    cases = []

    def train(trainer):
        cases.append(trainer.case)
        answer = ANSWERS[trainer.case.learning_rate]
        if answer == DIVERGES:
            raise NonFiniteLossError("The loss of update 7 is not finite.")
        accuracy, loss = answer
        return {
            "val_accuracy": accuracy - trainer.case.seed / 8,
            "val_loss": loss,
        }

    monkeypatch.setattr(sweeping, "prepare_case", lambda _, case: Trainer(case))
    monkeypatch.setattr(Trainer, "train", train, raising=False)
    return cases


def sweep(folder, rates, num_seeds=2):
    opened = open_sweep(
        RECIPES["digits"],
        str(folder),
        learning_rates=rates,
        num_seeds=num_seeds,
    )
    return run_sweep(opened)


def read(folder):
    return json.loads((folder / "sweep.json").read_text())


def test_of_equal_accuracies_the_lowest_loss_is_chosen(trained, tmp_path):
    sweep(tmp_path, (0.1, 0.2, 0.3, 0.4))
    choice = [("choice", rate, 0) for rate in (0.1, 0.2, 0.3, 0.4)]
    assert trained == [*choice, ("report", 0.3, 0), ("report", 0.3, 1)]
    report = read(tmp_path)
    assert report["learning_rate"] == 0.3
    assert report["test"] == {
        "mean": 0.6875,
        "deviation": pytest.approx(0.125 / 2**0.5),  # Of two values.
        "accuracies": [0.75, 0.625],
    }


def test_a_single_rate_needs_no_choice(trained, tmp_path, capsys):
    sweep(tmp_path, (0.2,), num_seeds=1)
    assert "Skipped 1 unreadable image: bad.jpg" in capsys.readouterr().out
    assert trained == [("report", 0.2, 0)]
    assert read(tmp_path)["test"]["deviation"] is None


def test_what_is_added_is_trained_and_the_rest_kept(trained, tmp_path):
    sweep(tmp_path, (0.1, 0.2))
    trained.clear()
    sweep(tmp_path, (0.1, 0.2), num_seeds=3)
    assert trained == [("report", 0.2, 2)]
    trained.clear()
    trials = sweep(tmp_path, (0.2, 0.6), num_seeds=1)
    assert trained == [("choice", 0.6, 0), ("report", 0.6, 0)]
    assert len(trials) == 3
    assert read(tmp_path)["test"]["accuracies"] == [0.9]
    # The file still has the others, which a later start may need.
    trained.clear()
    sweep(tmp_path, (0.1, 0.2), num_seeds=3)
    assert not trained
    assert len(read(tmp_path)["trials"]) == 7


def test_a_rate_with_which_the_loss_is_not_finite_is_not_chosen(
    trained, tmp_path, capsys
):
    sweep(tmp_path, (0.5, 0.1), num_seeds=1)
    assert trained[-1] == ("report", 0.1, 0)
    assert "not chosen. The loss of update 7" in capsys.readouterr().out
    trained.clear()
    sweep(tmp_path, (0.5, 0.1), num_seeds=1)
    assert not trained
    with open(tmp_path / "sweep.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["learning_rate"], row["accuracy"], row["loss"]) == (
        "0.5",
        "",
        "",
    )


def test_a_sweep_without_a_finite_loss_ends(trained, tmp_path, monkeypatch):
    with pytest.raises(NonFiniteLossError, match="update 7"):
        sweep(tmp_path / "report", (0.5,))
    monkeypatch.setitem(ANSWERS, 0.1, DIVERGES)
    with pytest.raises(NonFiniteLossError, match="any of the .*rates 0.5,0.1"):
        sweep(tmp_path / "choice", (0.5, 0.1))
    assert len(read(tmp_path / "choice")["trials"]) == 2


def test_two_sweeps_do_not_share_a_folder(trained, tmp_path):
    opened = open_sweep(RECIPES["digits"], str(tmp_path), num_seeds=1)
    with opened.run.claimed("sweep_dir"):
        with pytest.raises(OSError, match="`sweep_dir` is in use"):
            run_sweep(opened)
    assert not trained


def test_another_worker_trains_and_writes_nothing(
    trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("trainers.engine.engine.Engine.is_writer", False)
    assert len(sweep(tmp_path / "new", (0.1, 0.2))) == 4
    assert len(trained) == 4
    assert not (tmp_path / "new").exists()
    assert "Run 1" not in capsys.readouterr().out


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


def test_one_rate_for_a_recipe_with_a_grid_is_refused(tmp_path):
    """It would not be used."""
    chosen = ChosenRecipe("cifar10_b16", {"learning_rate": 0.05})
    with pytest.raises(ValueError, match="`learning_rates` .*learning_rate=0"):
        open_sweep(chosen.recipe, str(tmp_path), chosen=chosen)


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
        sweep = open_sweep(recipe, str(started), **choices)
        assert sweep.recipe.strategy == "mirrored"
        rates, count = sweep.grid.learning_rates, sweep.num_seeds
        assert choices in ({"learning_rates": rates}, {"num_seeds": count})


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
    photos = write_photos(tmp_path / "photos", 100 * ["a", "b"], size=(2, 2))
    data = {"dataset": f"folder:{photos}"}
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


def declared(train_split, **sizes):
    """Return a data set that has splits of these sizes, and no images."""
    splits = {name: count_split(name, size) for name, size in sizes.items()}
    reader = types.SimpleNamespace(splits=splits)
    return ImageDataset("declared", reader, train_split, "test")


@pytest.mark.parametrize(
    "split, held_out, parts",
    [
        ("train", "2%", ("train[0:49000]", "train[49000:50000]")),
        ("train[:98%]", "2%", ("train[0:48020]", "train[48020:49000]")),
        # The validation images of VTAB-1k.
        (
            "train[:800]+train[45000:45200]",
            "20%",
            ("train[0:800]", "train[45000:45200]"),
        ),
        (
            "train[:90]+validation",
            "25",
            ("train[0:90]+validation[0:5]", "validation[5:30]"),
        ),
    ],
)
def test_the_last_images_are_held_out(split, held_out, parts):
    """And both parts together are the training split, in its order."""
    dataset = declared(split, train=50_000, validation=30)
    assert hold_out(dataset, held_out) == parts
    numbers = [
        (name, index)
        for part in (*parts, split)
        for name, first, last in dataset.ranges(part)
        for index in range(first, last)
    ]
    half = len(numbers) // 2
    assert numbers[:half] == numbers[half:]


@pytest.mark.parametrize(
    "held_out, fault",
    [
        ("0%", "leave.*of the 30 im"),
        ("30", "leave.*of the 30 im"),
        ("0.1%", "leave.*of the 30 im"),
        ("2 %", "be a share such as"),
        ("0.5", "be a share such as"),
        ("train[90%:]", "be a share such as"),
    ],
)
def test_both_sides_have_images(held_out, fault):
    dataset = declared("train", train=30)
    with pytest.raises(ValueError, match=f"`held_out` must {fault}"):
        hold_out(dataset, held_out)


def open_records(folder, labels, num_classes):
    """Open records with one grey image for each label, to train on."""
    names = [f"class {index}" for index in range(num_classes)]
    (folder / "labels.txt").write_text("\n".join(names) + "\n")
    encoded = tf.io.encode_png(np.full((2, 2, 3), 128, "uint8")).numpy()
    for split in ("train", "test"):
        write_records(folder / f"{split}-0", len(labels) * [encoded], labels)
    return open_dataset(f"tfrecord:{folder}")


def test_records_in_the_order_of_their_classes_are_refused(tmp_path):
    dataset = open_records(tmp_path, np.repeat(range(4), 10), 4)
    _, held_out = hold_out(dataset, "25%")
    with pytest.raises(ValueError, match="shuffle.*10 images, all of .*ss 3'"):
        check_classes_held_out(dataset, held_out)


def test_few_classes_are_a_warning(tmp_path):
    dataset = open_records(tmp_path, np.repeat(range(20), 5), 20)
    _, held_out = hold_out(dataset, "25%")
    with pytest.warns(UserWarning, match="25 held-out .* are of 5 of the 20"):
        check_classes_held_out(dataset, held_out)
    # Shuffled ones are not warned of, which would be an error.
    labels = np.random.default_rng(0).permutation(np.repeat(range(20), 5))
    dataset = open_records(tmp_path, labels, 20)
    check_classes_held_out(dataset, hold_out(dataset, "25%")[1])


def test_images_of_a_folder_are_held_out_of_those_to_train_on(tmp_path):
    """Files on three sides; those of the test are where they were."""
    write_photos(tmp_path, 20 * ["a", "b"], size=(4, 4))
    dataset = open_dataset(f"folder:{tmp_path}")
    kept, held_out = hold_out(dataset, "25%")
    sides = [
        {
            name.decode()
            for _, _, name in dataset.reader.read(
                dataset.ranges(split)
            ).as_numpy_iterator()
        }
        for split in (kept, held_out, "test")
    ]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 40
    assert len(sides[1]) == round(0.25 * (40 - len(sides[2])))
    check_classes_held_out(dataset, held_out)


def test_grids_are_those_of_the_paper():
    """Table 4 and appendix B.1.1 of arXiv:2010.11929."""
    four = (0.001, 0.003, 0.01, 0.03)
    rows = {
        "imagenet_b16": ((0.003, 0.01, 0.03, 0.06), "1%"),
        "cifar10_b16": (four, "2%"),
        "cifar100_b16": (four, "2%"),
        "pets_b16": (four, "10%"),
        "flowers_b16": (four, "10%"),
        "vtab_l16": ((0.01,), "20%"),
    }
    assert {name: tuple(GRIDS[name]) for name in rows} == rows
    for name, grid in GRIDS.items():
        assert RECIPES[name].learning_rate in grid.learning_rates
        assert choose_grid(name, RECIPES[name]) is grid


@pytest.mark.parametrize("name", ["photos", None])
def test_other_recipes_try_rates_around_theirs(name):
    grid = choose_grid(name, Recipe(learning_rate=0.00068))
    assert grid == ((0.00023, 0.00068, 0.002), HELD_OUT)
