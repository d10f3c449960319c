"""The benchmark VTAB-1k: the tasks are parts of the digits here."""

import csv
import json
import types

import numpy as np
import pytest

from trainers.data.datasets import open_dataset
from trainers.data.readers.dataset_row import DatasetRow
from trainers.data.readers.tfds import DATASETS, Digits
from trainers.data.readers.vtab import VTAB_TASKS
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipes import RECIPES
from trainers.sweeps import sweeping
from trainers.sweeps.vtab import (
    TaskScore,
    average_groups,
    describe_scores,
    open_tasks,
    run_tasks,
    save_scores,
)
from trainers.training.loop import Interrupted

# arXiv:2010.11929, table 9, in the order of VTAB_TASKS.
PAPER = {
    "H/14 JFT": "95.3 85.5 75.2 99.7 97.2 65.0 88.9 83.3 96.7 91.4 76.6 "
    "91.7 63.8 53.1 79.4 63.3 84.5 33.2 51.2",
    "L/16 I21k": "90.8 84.1 74.1 99.3 92.7 61.0 80.9 82.5 95.6 85.2 75.3 "
    "70.3 56.1 41.9 74.7 64.9 79.9 30.5 41.7",
}


def made_scores(*seeds):
    return [
        TaskScore(task, 0.01, [accuracy / 100 for accuracy in accuracies])
        for task, accuracies in zip(VTAB_TASKS, zip(*seeds), strict=True)
    ]


@pytest.mark.parametrize(
    "model, mean", [("H/14 JFT", 77.6), ("L/16 I21k", 72.7)]
)
def test_the_mean_of_the_paper_follows_from_its_tasks(model, mean):
    row = [float(x) for x in PAPER[model].split()]
    found = average_groups(made_scores(row))
    assert list(found) == ["natural", "specialized", "structured", "all"]
    assert 100 * found["all"]["mean"] == pytest.approx(mean, abs=0.05)
    assert found["all"]["deviation"] is None
    parts = [100 * found[group]["mean"] for group in list(found)[:3]]
    want = [np.mean(row[:7]), np.mean(row[7:11]), np.mean(row[11:])]
    np.testing.assert_allclose(parts, want)


def test_an_incomplete_group_has_no_mean(tmp_path):
    scores = made_scores(np.arange(19.0))[:11]
    assert list(average_groups(scores)) == ["natural", "specialized"]
    table = describe_scores(scores)
    assert "mean of 7" in table and "mean of 19" not in table
    save_scores(str(tmp_path), scores)
    report = json.loads((tmp_path / "vtab.json").read_text())
    assert len(report["tasks"]) == 11 and "all" not in report["means"]
    lines = (tmp_path / "vtab.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    assert [row["group"] for row in rows if row["task"] == "mean"] == [
        "natural",
        "specialized",
    ]
    assert float(rows[3]["accuracy"]) == pytest.approx(0.03)


# Sweeps of several tasks.

TASKS = ("pets", "dsprites_location")
WHOLE = (None, None)  # The default splits of a task.


@pytest.fixture
def tasks(monkeypatch):
    """Let two tasks be digits, with 1,000 training images as theirs."""
    for index, name in enumerate(TASKS):
        first = [("train", 0, 800)]
        val = [("train", 1000 + 200 * index, 1200 + 200 * index)]
        splits = {"train": [("train", 0, 1442)], "all": [("test", 0, 355)]}
        splits |= {"train800": first, "val200": val}
        splits["train800val200"] = first + val
        splits["test"] = [("test", 100 * index, 100 * index + 100)]
        row = DatasetRow(
            Digits,
            train_split="train800val200",
            eval_split="test",
            splits=splits,
        )
        monkeypatch.setitem(DATASETS, f"vtab:{name}", row)


@pytest.fixture
def trained(monkeypatch):
    """Return the list of the recipes that are "trained"; 0.1 does best."""
    recipes = []

    def train(trainer):
        if trainer.loop.must_stop():
            raise Interrupted(0)
        recipe = trainer.recipe
        recipes.append(recipe)
        accuracy = recipe.learning_rate + recipe.seed / 8
        return {"val_accuracy": accuracy, "val_loss": 0.0}

    def prepare(sweep, case):
        trainer = types.SimpleNamespace(
            recipe=sweep.recipe_of(case),
            loop=types.SimpleNamespace(),
            bad_examples=types.SimpleNamespace(names=[]),
            memory_plan="fits",
        )
        trainer.train = lambda: train(trainer)
        return trainer

    monkeypatch.setattr(sweeping, "prepare_case", prepare)
    return recipes


def open_both(folder):
    return open_tasks(
        ChosenRecipe("vtab_l16", {"total_steps": 4}),
        str(folder),
        TASKS,
        learning_rates=(0.001, 0.1),
        num_seeds=2,
        held_out="200",
    )


def test_each_task_is_a_sweep_over_its_own_1000_images(
    tasks, trained, tmp_path
):
    scores = run_tasks(open_both(tmp_path), str(tmp_path))
    names = [f"vtab:{name}" for name in TASKS]
    assert scores == [TaskScore(name, 0.1, [0.1, 0.225]) for name in names]
    assert [(r.dataset, r.learning_rate, r.seed) for r in trained] == [
        (name, rate, seed)
        for name in names
        for rate, seed in ((0.001, 0), (0.1, 0), (0.1, 0), (0.1, 1))
    ]
    splits = [(recipe.train_split, recipe.eval_split) for recipe in trained]
    assert splits == [*[splits[0]] * 2, *[WHOLE] * 2] * 2
    dataset = open_dataset("vtab:pets")
    for split, name in zip(splits[0], ("train800", "val200")):
        assert list_names(dataset, split) == list_names(dataset, name)
    augments = [recipe.augment for recipe in trained]
    assert augments == [
        *["resize(448)|random_crop|flip_lr"] * 4,
        *["resize"] * 4,
    ]
    assert {recipe.total_steps for recipe in trained} == {4}
    report = json.loads((tmp_path / "vtab.json").read_text())
    assert report["tasks"]["vtab:pets"] == {
        "group": "natural",
        "learning_rate": 0.1,
        "mean": pytest.approx(0.1625),
        "deviation": pytest.approx(0.125 / 2**0.5),
        "accuracies": [0.1, 0.225],
    }
    assert report["means"] == {}


def list_names(dataset, split):
    """Return the names of the images of a split."""
    rows = dataset.reader.read(dataset.ranges(split))
    [names] = rows.map(lambda stored, label, name: name).batch(1000)
    return names.numpy().tolist()


def test_a_stopped_benchmark_goes_on_at_its_task(tasks, trained, tmp_path):
    with pytest.raises(Interrupted):
        run_tasks(
            open_both(tmp_path),
            str(tmp_path),
            must_stop=(tmp_path / "vtab.json").exists,
        )
    done = json.loads((tmp_path / "vtab.json").read_text())["tasks"]
    assert list(done) == ["vtab:pets"] and len(trained) == 4
    scores = run_tasks(open_both(tmp_path), str(tmp_path))
    assert {recipe.dataset for recipe in trained[4:]} == {scores[1].task}
    assert scores[0].accuracies == done["vtab:pets"]["accuracies"]


@pytest.mark.parametrize(
    "name, given, tasks, message",
    [
        ("digits", {}, None, "`recipe` .*vtab_l16.*recipe='digits'"),
        ("vtab_l16", {"dataset": "cifar10"}, None, "`dataset` .*'cifar10'"),
        ("vtab_l16", {"train_split": "train"}, None, "`train_split` .*'train'"),
        ("vtab_l16", {}, ["dogs"], "`tasks` .*'vtab:pets'.*'vtab:dogs'"),
    ],
)
def test_what_the_benchmark_fixes_cannot_be_changed(
    name, given, tasks, message, tmp_path
):
    assert name in RECIPES
    with pytest.raises(ValueError, match=message):
        open_tasks(ChosenRecipe(name, given), str(tmp_path), tasks)
    assert not list(tmp_path.iterdir())
