import dataclasses
import pathlib
import sys

import numpy as np
import pytest

from benchmarks import exports, worker_exports
from benchmarks.exports import CONTENDERS, Result
from benchmarks.flops import num_parameters
from benchmarks.harness import read_csv
from keras_vit import VARIANTS

ROOT = pathlib.Path(__file__).parents[2]

RESULT = Result(
    model="Ti/16",
    threads=2,
    batch_size=8,
    seconds={
        "litert": [1.0, 2.0, 4.0],
        "litert_int8": [0.5, 0.5, 0.5],
        "onnx": [3.0, 3.0, 3.0],
        "timm": [9.0, 9.0, 9.0],
        "timm_onnx": [2.0, 3.0, 4.0],
    },
)
WITHOUT_TIMM = dataclasses.replace(RESULT, seconds={"onnx": [1.0]})


@pytest.mark.parametrize("name", ["Ti/16", "S/32", "B/16", "Pico/2"])
def test_parameters_are_counted_in_closed_form(name):
    variant = VARIANTS[name]
    assert num_parameters(variant.config) == variant.num_parameters


def test_ratio_is_the_median_over_the_rounds_to_the_fastest_of_timm():
    assert RESULT.fastest("ours") == "litert"  # Of float32.
    assert RESULT.fastest("timm") == "timm_onnx"
    assert RESULT.ratio("litert") == 1.5  # Of 2.0, 1.5 and 1.0.
    assert RESULT.ratio("timm") == pytest.approx(1 / 3)
    assert WITHOUT_TIMM.ratio("onnx") is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--contenders", "torchscript"],
        ["--threads", "0"],
    ],
)
def test_options_that_do_not_fit_end_the_program(arguments, capsys):
    with pytest.raises(SystemExit):
        exports.parse(arguments)
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones((2, 4)), "shape"),
        ([np.ones((2, 4))], "shape"),
        (np.array([[1.0, np.nan, 2.0]] * 2), "finite"),
        (np.array([[1.0, 2.0, np.inf]] * 2), "finite"),
        (np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), "apart"),
    ],
)
def test_an_answer_that_is_none_is_refused(answer, message):
    worker_exports.check_output(np.array([[1.0, 2.0, 3.0]] * 2), (2, 3))
    with pytest.raises(ValueError, match=message):
        worker_exports.check_output(answer, (2, 3))


def test_a_model_of_another_size_is_refused():
    case = {"num_parameters": 5_717_416}
    worker_exports.check_num_parameters(5_717_416, case)
    with pytest.raises(ValueError, match="5,717,416.*5,717,417"):
        worker_exports.check_num_parameters(5_717_417, case)


class FakeWorker:
    """Replies at once and records the order of the requests."""

    asked = []
    cases = []
    versions = {"keras": "3"}

    def __init__(self, module, case, python):
        self.case = {**case, "python": python}
        self.cases.append(self.case)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def ask(self, name):
        assert name == "step"
        self.asked.append((self.case["package"], self.case["action"]))
        # The first of two answers, which must not count, takes longer.
        first = self.asked.count(self.asked[-1]) % 2
        return {"ours": 2.0, "timm": 1.0}[self.case["package"]] + 9 * first


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(FakeWorker, "asked", [])
    monkeypatch.setattr(FakeWorker, "cases", [])
    monkeypatch.setattr(exports, "Worker", FakeWorker)
    return FakeWorker


def test_every_contender_runs_the_case_where_its_library_is(fake, tmp_path):
    python = sys.executable
    # Another name of an interpreter, as that of timm has.
    (tmp_path / "python").symlink_to(python)
    torch_python = str(tmp_path / "python")
    path = tmp_path / "exports.csv"
    arguments = [
        *("--torch_python", torch_python, "--rounds", "3"),
        *("--threads", "2", "--batch_sizes", "1,8", "--csv", str(path)),
    ]
    exports.main(arguments)
    writers = [c for c in fake.cases if "folder" in c]
    assert [(c["action"], c["python"]) for c in writers] == [
        ("write_ours", python),
        ("write_timm", torch_python),
    ]
    # Whoever runs a file finds it, and each is written once.
    runners = [c for c in fake.cases if "shape" in c and c["action"] != "torch"]
    written = [file for case in writers for file in case["files"]]
    assert sorted(written) == sorted(
        {pathlib.Path(case["path"]).name for case in runners}
    )
    for case in fake.cases:
        needs_torch = case["action"] in ("write_timm", "torch")
        assert case["python"] == (torch_python if needs_torch else python)
        assert case["num_parameters"] == VARIANTS["Ti/16"].num_parameters
        assert case["action"] in worker_exports.ACTIONS
        if "shape" in case:
            is_timm = case["package"] == "timm"
            shape = [3, 224, 224] if is_timm else [224, 224, 3]
            assert case["shape"] == [case["batch_size"], *shape]
    rows = read_csv(path)
    assert [row["contender"] for row in rows] == 2 * list(CONTENDERS)
    assert {row["seconds"] for row in rows} == {"1", "2"}
    assert {row["ratio"] for row in rows} == {"1.0000", "0.5000"}


def test_timm_is_left_out_without_an_interpreter(fake, tmp_path, capsys):
    path = tmp_path / "exports.csv"
    exports.main(["--rounds", "1", "--csv", str(path)])
    assert {case["package"] for case in fake.cases} == {"ours"}
    assert {row["ratio"] for row in read_csv(path)} == {""}
    assert "timm was left out" in capsys.readouterr().out


def test_rounds_start_with_another_contender_each_time(monkeypatch):
    monkeypatch.setattr(FakeWorker, "asked", [])
    workers = {
        name: FakeWorker("", {"package": "ours", "action": name}, "")
        for name in "abc"
    }
    seconds = exports.measure(workers, 3)
    order = "".join(action for _, action in FakeWorker.asked)
    assert order == "aabbccbbccaaccaabb"
    assert seconds == {name: 3 * [2.0] for name in "abc"}


@pytest.mark.slow
def test_the_command_writes_exports_and_runs_them(tmp_path, capsys, forked):
    for module in ("onnxruntime", "tf2onnx"):
        pytest.importorskip(module)
    path = tmp_path / "exports.csv"
    exports.main(
        [
            *("--models", "Pico/2", "--contenders", "litert,onnx"),
            *("--threads", "1", "--batch_sizes", "2", "--rounds", "1"),
            *("--csv", str(path)),
        ]
    )
    rows = read_csv(path)
    assert [row["contender"] for row in rows] == ["litert", "onnx"]
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert "| ours | ONNX Runtime | float32 |" in capsys.readouterr().out
