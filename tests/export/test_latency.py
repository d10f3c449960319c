import json

import keras
import numpy as np
import pytest

from keras_vit.export import FORMATS, latency
from keras_vit.export.latency import (
    PROGRAM,
    READY,
    Latency,
    compare_times,
    measure_exports,
    measure_latency,
    measure_request,
)
from tests.export.conftest import KINDS


class Machine:
    """Time that passes only when something runs, ever slower."""

    def __init__(self):
        self.wall = 0.0
        self.runs = []

    def program(self, name, seconds):
        def run():
            seconds_now = seconds * (1 + 0.1 * len(self.runs))
            self.runs.append(name)
            self.wall += seconds_now

        return run


def test_ratios_are_of_neighbours_in_time(monkeypatch):
    """The machine gets four times as slow: the ratio hardly notices."""
    machine = Machine()
    monkeypatch.setattr("time.perf_counter", lambda: machine.wall)
    found = compare_times(
        machine.program("keras", 1.0),
        {
            "half": machine.program("half", 0.5),
            "twice": machine.program("twice", 2.0),
        },
        repetitions=5,
    )
    assert list(found) == ["half", "twice"]
    assert found["half"]["ratio"] == pytest.approx(0.5, rel=0.15)
    assert found["twice"]["ratio"] == pytest.approx(2.0, rel=0.15)
    assert 1000 < found["half"]["keras_milliseconds"] < 4000
    # Twice in a row each, and nobody always first.
    assert machine.runs[::2] == machine.runs[1::2]
    assert machine.runs[:12:2] == [
        *("keras", "half", "twice"),
        *("twice", "keras", "half"),
    ]


@pytest.fixture(scope="module")
def exports(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("latency")
    (folder / "model.txt").touch()
    return {
        "saved_model": bundle["saved_model"].path,
        "tflite": bundle["tflite float32"].path,
        # A browser gives the model an image at a time.
        "tflite of 1": f"{bundle['web float32'].path}/model.tflite",
        "int8": bundle["tflite int8"].path,
        "unknown": folder / "model.txt",
        "missing": folder / "missing.tflite",
    }


@pytest.mark.parametrize("format", [f for f in FORMATS if f != "web"])
def test_every_format_is_really_run(format, bundle, model, monkeypatch):
    """Not only timed: the answers are those of the model to the noise."""
    runs = {}

    def compare_times(keras_run, exports, repetitions):
        runs.update(exports, keras=keras_run)
        return {}

    monkeypatch.setattr(latency, "compare_times", compare_times)
    path = bundle[KINDS[format]].path
    request = {"exports": {"it": path}, "batch_size": 2, "threads": 1}
    measure_exports(model, {**request, "repetitions": 1})
    [found] = runs["it"]().values()
    np.testing.assert_allclose(found, runs["keras"](), atol=1e-5)


@pytest.mark.slow
def test_processes_of_so_many_threads_measure_in_turn(
    model, exports, monkeypatch, tmp_path, forked
):
    log = tmp_path / "log"
    program = PROGRAM.replace(
        "measure_request(input())",
        "folder = input(); begin = time.monotonic(); measure_request(folder)",
    )
    program += f"""
from tensorflow.config import threading as it
threads = it.get_intra_op_parallelism_threads()
in_turn = it.get_inter_op_parallelism_threads()
with open({str(log)!r}, "a") as file:
    print(threads, in_turn, begin, time.monotonic(), file=file)
"""
    monkeypatch.setattr(latency, "PROGRAM", "import time" + program)
    rows = measure_latency(model, exports, [2, 1], 2, repetitions=5)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line[:2] for line in lines] == [["2", "1"], ["1", "1"]]
    assert float(lines[0][3]) < float(lines[1][2])
    assert [row.name for row in rows] == [*exports, *exports]
    assert [row.threads for row in rows] == [2] * len(exports) + [1] * len(
        exports
    )
    for row in rows:
        assert row.batch_size == 2
        if row.name in ("saved_model", "tflite", "int8"):
            assert row.reason == ""
            assert 0 < row.milliseconds and 0 < row.keras_milliseconds
            assert 0.001 < row.ratio < 100
        else:
            assert row.ratio is row.milliseconds is None
    reasons = {row.name: row.reason for row in rows}
    assert "batches of 1 images" in reasons["tflite of 1"]
    assert "must be a file that ends in" in reasons["unknown"]
    assert "missing.tflite" in reasons["missing"]


@pytest.fixture
def idle_processes(monkeypatch):
    """Start processes that import nothing and end without an answer.

    They take a second: a time limit that is not kept lets them end.
    """
    program = f"import time; print({READY!r}, flush=True); time.sleep(1)"
    monkeypatch.setattr(latency, "PROGRAM", program)


def test_rows_are_in_the_order_of_threads_and_exports(
    shallow, idle_processes, monkeypatch
):
    asked = []

    def run_process(process, folder, request):
        model = keras.saving.load_model(folder / "model.keras")
        asked.append((model.count_params(), dict(request)))
        return {name: {"ratio": 0.1} for name in request["exports"]}

    monkeypatch.setattr(latency, "run_process", run_process)
    rows = measure_latency(shallow, {"a": "x", "b": "y"}, (1, 3), 4, 5)
    assert rows == [
        Latency(name, threads, 4, ratio=0.1)
        for threads in (1, 3)
        for name in "ab"
    ]
    number, request = asked[1]
    assert number == shallow.count_params()
    assert request == {
        "exports": {"a": "x", "b": "y"},
        "batch_size": 4,
        "repetitions": 5,
        "threads": 3,
    }


def test_a_model_that_a_new_process_does_not_know(
    exports, idle_processes, monkeypatch
):
    """As little as this one, where the class is not registered."""

    class Unknown(keras.layers.Layer):
        def call(self, x):
            return x

    def run_process(process, folder, request):
        (folder / "request.json").write_text(json.dumps(request))
        measure_request(folder)
        return json.loads((folder / "result.json").read_text())

    monkeypatch.setattr(latency, "run_process", run_process)
    monkeypatch.setattr(latency, "set_threads", id)
    inputs = keras.Input((32, 24, 3))
    strange = keras.Model(inputs, Unknown()(inputs))
    (row,) = measure_latency(strange, {"a": exports["tflite"]}, [1])
    assert row.ratio is None
    assert "cannot load it: TypeError: Could not locate class" in row.reason


def test_what_goes_wrong_is_a_reason_and_no_error(
    shallow, exports, idle_processes, monkeypatch
):
    one = {"a": exports["tflite"]}

    class Lambda(keras.Model):
        def save(self, *args):
            raise NotImplementedError("it holds\na lambda")

    (row,) = measure_latency(Lambda(), one, [1])
    words = "the model cannot be saved: NotImplementedError: it holds a lambda"
    assert row == Latency("a", 1, 1, reason=words)
    with monkeypatch.context() as patch:
        patch.setattr(latency, "TIME_LIMIT", 0.001)
        (row,) = measure_latency(shallow, one, [2])
        assert row.reason == "it took longer than 0.001 s"
    monkeypatch.setattr("sys.executable", "false")
    rows = measure_latency(shallow, one | {"b": "c"}, [2])
    assert [row.reason for row in rows] == ["the process ended with 1: "] * 2
