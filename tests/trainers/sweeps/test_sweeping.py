"""Which runs a sweep makes, with trainings whose results are known."""

import csv
import json
import types

import pytest

from trainers.recipes.recipes import RECIPES
from trainers.sweeps import sweeping
from trainers.sweeps.sweeping import open_sweep, run_sweep
from trainers.training.loop import NonFiniteLossError

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
