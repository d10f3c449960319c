import pathlib
import sys

import pytest

from benchmarks import compare, harness, serve
from benchmarks import compare_report as report
from benchmarks.flops import (
    MATRIX_SHAPE,
    forward_flops,
    matrix_flops,
    step_flops,
)
from keras_vit import VARIANTS, ViTConfig

RESULT = report.Result(
    model="S/16",
    task="forward",
    precision="float32",
    batch_size=8,
    flops=50 * matrix_flops(*MATRIX_SHAPE),
    seconds={"ours": [1.0, 2.0, 4.0], "keras-hub": [2.0, 2.0, 2.0]},
    product_seconds={"tensorflow": [0.01, 0.01, 9.0], "torch": [0.02]},
)


@pytest.mark.parametrize(
    ("model", "gigaflops"),
    [("Ti/16", 2.5), ("S/16", 9.2), ("B/16", 35.1), ("L/16", 123.1)],
)
def test_forward_flops_are_the_published_ones(model, gigaflops):
    flops = forward_flops(VARIANTS[model].config)
    assert flops / 1e9 == pytest.approx(gigaflops, abs=0.05)


def test_forward_flops_count_every_product_of_a_small_model():
    config = ViTConfig(
        width=6,
        depth=2,
        mlp_dim=10,
        num_heads=3,
        patch_size=4,
        image_size=(8, 12),
        num_classes=7,
    )
    patches = matrix_flops(6, 4 * 4 * 3, 6)
    attention = 3 * [(2, 7)] + 3 * [(7, 2)]  # Two products for each head.
    block = (
        matrix_flops(7, 6, 18)
        + sum(matrix_flops(7, inner, columns) for inner, columns in attention)
        + matrix_flops(7, 6, 6)
        + matrix_flops(7, 6, 10)
        + matrix_flops(7, 10, 6)
    )
    head = matrix_flops(1, 6, 7)
    assert forward_flops(config) == patches + 2 * block + head


def test_a_training_step_is_three_forward_passes():
    config = VARIANTS["S/16"].config
    assert step_flops(config, "forward", 8) == 8 * forward_flops(config)
    assert step_flops(config, "train", 8) == 24 * forward_flops(config)


def test_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians():
    assert harness.median_ratio([3.0, 1.0, 8.0], [1.0, 2.0, 4.0]) == 2.0
    with pytest.raises(ValueError):
        harness.median_ratio([1.0, 2.0], [1.0])


def test_slower_rows_are_those_below_the_tolerance():
    even = RESULT
    slow = report.Result(
        **{**vars(RESULT), "seconds": {"ours": [1.0], "keras-hub": [0.9]}}
    )
    alone = report.Result(**{**vars(RESULT), "seconds": {"ours": [1.0]}})
    results = [even, slow, alone]
    assert report.slower_rows(results, "keras-hub", 0.0) == [slow]
    assert report.slower_rows(results, "keras-hub", 0.2) == []


def test_csv_has_a_row_for_every_package(tmp_path):
    harness.write_csv(tmp_path / "results.csv", report.csv_rows([RESULT]))
    ours, theirs = harness.read_csv(tmp_path / "results.csv")
    columns = "model task precision batch_size package rounds seconds"
    columns += " images_per_second ratio matrix_gflops floor_seconds"
    assert list(ours) == columns.split()
    assert (ours["package"], theirs["package"]) == ("ours", "keras-hub")
    assert (ours["ratio"], ours["images_per_second"]) == ("1.0000", "4")
    assert (ours["rounds"], ours["floor_seconds"]) == ("3", "0.5")


def test_the_floor_is_that_of_the_faster_library():
    assert RESULT.matrix_rate("torch") == pytest.approx(371.8e9, rel=1e-3)
    assert RESULT.best_matrix_rate == RESULT.matrix_rate("tensorflow")
    assert RESULT.floor_seconds == pytest.approx(0.5)


def test_markdown_has_description_rates_and_results():
    page = report.format_page(
        [RESULT], ["ours", "keras-hub"], ["torch"], ["a machine"]
    )
    assert "- a machine\n" in page
    row = "| S/16 | forward | float32 | 8 | 4.00 | 4.00 | 1.00 | 372 | 16.00 "
    assert row + "| 25% |\n" in page


def test_the_machine_is_described_without_its_name_or_paths():
    lines = harness.describe_machine({"keras": "3.15.1"}, 2)
    assert "keras 3.15.1" in lines[-1]
    assert "2 threads" in lines[0]
    assert not any(str(pathlib.Path.home()) in line for line in lines)


def test_training_in_bfloat16_is_mixed_and_measured_once():
    options = compare.parse(["--precisions", "bfloat16,mixed_bfloat16"])
    found = [(c["task"], c["precision"]) for c in compare.cases(options)][:3]
    assert found == [
        ("forward", "bfloat16"),
        ("forward", "mixed_bfloat16"),
        ("train", "mixed_bfloat16"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--models", "B/17"],
        ["--models", "R50+B/16"],
        ["--models", "B/16-gap"],
        ["--precisions", "float16"],
        ["--tasks", "serve"],
        ["--against", "vit-keras"],
        ["--activation", "erf"],
        ["--against", "timm", "--require_not_slower"],
    ],
)
def test_options_that_do_not_fit_end_the_program(arguments, capsys):
    with pytest.raises(SystemExit):
        compare.parse(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_timm_is_left_out_without_an_interpreter():
    assert compare.rivals(compare.parse([])) == ["keras-hub"]
    options = compare.parse(["--torch_python", sys.executable])
    assert compare.rivals(options) == ["keras-hub", "timm"]


@pytest.mark.slow
def test_a_worker_that_fails_shows_its_message():
    case = {"package": "theirs", "threads": 1}
    with pytest.raises(RuntimeError, match="KeyError: 'theirs'"):
        serve.Worker("benchmarks.worker_keras", case)


@pytest.mark.slow
def test_the_command_writes_both_tables(tmp_path):
    code = compare.main(
        [
            *("--models", "Ti/16", "--image_size", "32", "--batch_size", "2"),
            *("--tasks", "forward", "--precisions", "float32"),
            *("--against", "", "--repeats", "1", "--threads", "1"),
            *("--out", str(tmp_path)),
        ]
    )
    assert code == 0
    (row,) = harness.read_csv(tmp_path / "results.csv")
    assert (row["model"], row["package"]) == ("Ti/16", "ours")
    assert float(row["seconds"]) > 0
    assert "| Ti/16 | forward |" in (tmp_path / "results.md").read_text()


class FakeWorker:
    """Answers at once and remembers in what order it was asked."""

    asked = []
    cases = []
    versions = {"keras": "3"}

    def __init__(self, module, case, python=None):
        self.package = case["package"]
        self.cases.append(case)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, name):
        self.asked.append((self.package, name))
        return {"ours": 2.0, "keras-hub": 1.0}[self.package]


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(FakeWorker, "asked", [])
    monkeypatch.setattr(FakeWorker, "cases", [])
    monkeypatch.setattr(compare, "Worker", FakeWorker)
    return FakeWorker


def test_a_slower_row_fails_the_command_if_asked(fake, tmp_path, capsys):
    arguments = ["--models", "S/16", "--out", str(tmp_path)]
    assert compare.main(arguments) == 0
    assert compare.main([*arguments, "--require_not_slower"]) == 1
    assert "SLOWER than keras-hub: S/16 forward" in capsys.readouterr().out
    assert "timm was left out" in (tmp_path / "results.md").read_text()


def test_rounds_are_interleaved_and_cases_are_those_asked_for(fake, tmp_path):
    compare.main(
        [
            *("--models", "S/16", "--precisions", "float32"),
            *("--tasks", "train", "--repeats", "2", "--out", str(tmp_path)),
        ]
    )
    steps = [package for package, name in fake.asked if name == "step"]
    assert steps == ["ours", "keras-hub"] * 2
    for case in fake.cases:
        assert case["batch_size"] == 16
        assert case["config"]["dropout_rate"] == 0
