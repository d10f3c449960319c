import csv
import dataclasses
import pathlib
import shutil

import pytest

from benchmarks import self_supervision, study
from benchmarks.harness import most_accurate_rate
from benchmarks.self_supervision import Result
from trainers.data.datasets import open_dataset
from trainers.recipes.recipes import RECIPES


def result(rate, accuracy, purpose="choice", seed=100):
    settings = (0, 1000, 0)  # First image, updates, epochs of an encoder.
    return Result(purpose, "new weights", 10, rate, seed, *settings, accuracy)


def test_the_best_rate_is_chosen_and_of_equals_the_lowest():
    choice = [result(0.01, 0.9), result(0.003, 0.9), result(0.001, 0.8)]
    assert most_accurate_rate(choice) == 0.003


def test_the_images_of_the_choice_and_the_report_are_new():
    """Neither the encoders nor the classifiers learn from them."""
    digits = open_dataset("digits")
    splits = {
        name: digits.ranges(split)
        for name, split in (
            ("trained", self_supervision.TRAINED),
            ("choice", self_supervision.CHOICE),
            ("report", self_supervision.REPORT),
        )
    }
    [(trained, first, last)] = splits["trained"]
    assert (trained, first) == ("train", 0)
    assert last >= self_supervision.NUM_TRAINED
    assert splits["choice"] == [("train", last, 1442)]
    assert splits["report"][0][0] == "test"
    encoder = self_supervision.pretraining("mae_digits", 2)
    assert encoder.train_split == self_supervision.TRAINED
    assert encoder.eval_split == self_supervision.CHOICE


@pytest.mark.parametrize("labels", [10, 1153])
def test_the_images_of_the_seeds_are_within_the_trained_ones(labels):
    apart = self_supervision.spread(labels, 5)
    assert round(4 * apart) + labels == self_supervision.NUM_TRAINED
    assert self_supervision.spread(labels, 1) * 0 == 0


def test_table_shows_the_mean_and_deviation_of_the_report():
    results = [
        result(0.01, 1.0),
        result(0.01, 0.5, "report", seed=0),
        result(0.01, 0.6, "report", seed=1),
    ]
    table = self_supervision.describe(results).splitlines()
    assert table[0] == "| labelled images | new weights |"
    assert table[-1] == "| 10 | 55.0 ± 7.1 % |"


def test_a_number_of_labels_that_is_not_there_is_refused(capsys):
    with pytest.raises(SystemExit):
        self_supervision.parse(["--labels=10,2000"])
    assert "from 1 to 1153: 2000" in capsys.readouterr().err


def test_rows_of_other_settings_stay_and_are_not_taken(
    tmp_path, monkeypatch, capsys
):
    tuned = []

    def tune(case, options):
        tuned.append(case)
        return Result(*case, options.epochs / 1000)

    monkeypatch.setattr(self_supervision, "tune", tune)
    monkeypatch.setattr(self_supervision, "draw", lambda *args: None)
    path = tmp_path / "results.csv"
    line = ["--labels=1103", "--updates=2", f"--csv={path}", "--seeds=2"]
    num_rates, num_ways = len(self_supervision.RATES), 3
    for more, num_new in (
        (["--epochs=10"], num_ways * (num_rates + 2)),
        (["--epochs=20"], 2 * (num_rates + 2)),  # Encoders alone have epochs.
        (["--epochs=20", "--updates=3"], num_ways * (num_rates + 2)),
        # The second of three seeds has other images than that of two, and so
        # has the choice, whose seed is 100; the first and the third have not.
        (["--epochs=20", "--seeds=3"], num_ways * (num_rates + 2)),
        (["--epochs=10"], 0),
    ):
        tuned.clear()
        assert self_supervision.main(line + more) == 0
        assert len(tuned) == num_new
    assert "| 1,103 | 1.0 ± 0.0 % | 1.0 ± 0.0 % |" in capsys.readouterr().out
    first_images = {r.first_image for r in study.read_study(path, Result)}
    assert first_images == {0, 25, 50}


def test_the_published_rows_are_those_of_the_settings(tmp_path, monkeypatch):
    """A study that goes on from its published file trains nothing."""
    published = pathlib.Path(study.__file__).parent / (
        "results/self_supervision.csv"
    )
    path = tmp_path / "results.csv"
    shutil.copy(published, path)
    monkeypatch.setattr(self_supervision, "tune", None)
    assert self_supervision.main([f"--csv={path}"]) == 0
    assert path.read_text() == published.read_text()


@pytest.mark.slow(60)
@pytest.mark.usefixtures("eagerly")
@pytest.mark.filterwarnings("ignore:.*does not apply to tf.data functions")
def test_it_runs_and_goes_on_where_it_was_interrupted(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "results.csv"
    line = ["--labels=10", "--seeds=1", "--updates=2", "--epochs=1"]
    line += [f"--folder={tmp_path / 'encoders'}", f"--csv={path}"]
    monkeypatch.setattr(self_supervision, "RATES", (1e-3,))
    for name in ("digits", "mpp_digits", "mae_digits"):
        small = {"model": "mu/16", "patch_size": 2, "decoder_depth": 1}
        recipe = dataclasses.replace(RECIPES[name], **small)
        monkeypatch.setitem(RECIPES, name, recipe)
    assert self_supervision.main(line) == 0
    table = capsys.readouterr().out.partition("| labelled")[2]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["way"], row["purpose"]) for row in rows] == [
        (way, purpose)
        for way in self_supervision.WAYS
        for purpose in ("choice", "report")
    ]
    assert path.with_suffix(".png").stat().st_size > 1000
    # The last classifier alone is missing; its encoder is there.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    tuned = []
    tune = self_supervision.tune
    monkeypatch.setattr(
        self_supervision,
        "tune",
        lambda case, options: tuned.append(case) or tune(case, options),
    )
    monkeypatch.setattr(self_supervision, "train", None)
    assert self_supervision.main(line) == 0
    assert tuned == [("report", "autoencoder", 10, 1e-3, 0, 0, 2, 1)]
    assert path.read_text() == "".join(lines)
    assert capsys.readouterr().out.partition("| labelled")[2] == table
