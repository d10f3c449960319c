import dataclasses

import pytest

from benchmarks import transfer, transfer_report
from benchmarks.harness import write_table
from benchmarks.transfer_report import Curve
from trainers.recipes.recipes import RECIPES


def curves(purpose, arm, accuracies, rate=0.01):
    """Return a curve for each accuracy, by seed."""
    return [
        Curve(purpose, arm, rate, seed, ((11, 0.25), (22, accuracy)))
        for seed, accuracy in enumerate(accuracies)
    ]


def test_arms_differ_in_where_they_start_only():
    arms = [
        dataclasses.asdict(
            transfer.arm_recipe("report", arm, 0.01, 3, "model.keras")
        )
        for arm in ("transfer", "scratch")
    ]
    differing = {name for name in arms[0] if arms[0][name] != arms[1][name]}
    assert differing == {"init_from", "init_head"}
    assert arms[0]["init_from"] == "model.keras"
    assert arms[1]["init_from"] is None
    assert arms[0]["image_size"] == 2 * RECIPES["digits_pretrain"].image_size


def test_the_test_split_has_no_part_in_the_choice():
    choice = transfer.arm_recipe("choice", "scratch", 0.01, 100, "")
    assert choice.train_split == "train[:80%]"
    assert choice.eval_split == "train[80%:]"
    report = transfer.arm_recipe("report", "scratch", 0.01, 0, "")
    assert report.train_split is report.eval_split is None


def test_the_rate_with_the_best_mean_is_chosen_of_each_arm_by_itself():
    some = [
        *curves("choice", "scratch", [0.9, 0.1], rate=0.003),
        *curves("choice", "scratch", [0.6, 0.5], rate=0.01),
        *curves("choice", "scratch", [0.5, 0.6], rate=0.03),
        *curves("choice", "transfer", [0.9, 0.9], rate=0.03),
        *curves("report", "scratch", [1.0, 1.0], rate=0.003),
    ]
    assert transfer_report.choose_rate(some, "scratch") == 0.01
    assert transfer_report.choose_rate(some, "transfer") == 0.03


@pytest.mark.parametrize(
    ("accuracies", "wins"),
    [
        ([0.9, 0.9, 0.9, 0.9, 0.9], True),
        ([0.9, 0.9, 0.9, 0.9, 0.4], True),
        ([0.9, 0.9, 0.9, 0.5, 0.5], False),  # A draw is not a win.
        ([0.51, 0.51, 0.51, 0.51, 0.0], False),  # The mean is lower.
        ([0.4, 0.4, 0.4, 0.4, 0.4], False),
    ],
)
def test_transfer_wins_in_the_mean_and_with_four_of_five_seeds(
    accuracies, wins
):
    scratch = curves("report", "scratch", [0.5] * 5)
    some = [*curves("report", "transfer", accuracies), *reversed(scratch)]
    assert transfer_report.transfer_wins(some) is wins


def test_tables_and_picture_come_of_the_csv_file_alone(tmp_path, capsys):
    some = [
        *curves("choice", "transfer", [0.75, 0.5]),
        *curves("choice", "scratch", [0.5, 0.25]),
        *curves("report", "transfer", [0.875, 0.75]),
        *curves("report", "scratch", [0.25, 0.5], rate=0.003),
    ]
    path, picture = tmp_path / "transfer.csv", tmp_path / "transfer.png"
    write_table(path, transfer_report.csv_rows(some))
    assert transfer_report.read_curves(path) == some
    arguments = ["--redraw", "--require", f"--csv={path}"]
    assert transfer.main([*arguments, f"--picture={picture}"]) == 0
    assert picture.read_bytes()[1:4] == b"PNG"
    lines = capsys.readouterr().out.splitlines()
    assert "| from scratch | 37.50 % |" in lines
    assert lines[-3:] == [
        "| 0 | 87.50 % | 25.00 % |",
        "| 1 | 75.00 % | 50.00 % |",
        "| mean | 81.25 % | 37.50 % |",
    ]


def test_reported_seeds_are_not_those_of_the_choice(monkeypatch, tmp_path):
    """And each arm is reported at its own best rate, from its seed's model."""
    best = {"transfer": transfer.RATES[0], "scratch": transfer.RATES[-1]}

    def learn(purpose, arm, rate, seed, initial, folder):
        assert initial == f"model {seed}"
        accuracy = 0.9 if rate == best[arm] else 0.5
        return Curve(purpose, arm, rate, seed, ((66, accuracy),))

    monkeypatch.setattr(transfer, "learn", learn)
    monkeypatch.setattr(transfer, "pretrain", lambda seed, _: f"model {seed}")
    some = list(transfer.measure(5, tmp_path))
    seeds = {
        purpose: {c.seed for c in some if c.purpose == purpose}
        for purpose in ("choice", "report")
    }
    assert seeds["report"] == set(range(5))
    assert len(seeds["choice"]) > 1
    assert not seeds["choice"] & seeds["report"]
    for arm, rate in best.items():
        curves = transfer_report.reported_curves(some, arm).values()
        assert [c.learning_rate for c in curves] == [rate] * 5
