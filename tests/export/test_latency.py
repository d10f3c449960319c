import json

import keras
import numpy as np
import pytest

import keras_vit.export.latency
from keras_vit.export import FORMATS, export_saved_model
from keras_vit.export.agreement import make_noise
from keras_vit.export.formats.tflite import to_tflite
from keras_vit.export.latency import (
    PROGRAM,
    READY,
    Latency,
    compare_times,
    measure_latency,
    measure_request,
    set_threads,
)
from tests.export.conftest import make_model

SHAPE = (2, 32, 24, 3)


class Machine:
    """Time that passes only when something runs, ever slower."""

    def __init__(self):
        self.wall = self.cpu = 0.0
        self.runs = []

    def program(self, name, seconds, threads=1):
        def run():
            seconds_now = seconds * (1 + 0.1 * len(self.runs))
            self.runs.append(name)
            self.wall += seconds_now
            self.cpu += seconds_now * threads

        return run


def test_ratios_are_of_neighbours_in_time(monkeypatch):
    """The machine gets four times as slow: the ratio hardly notices."""
    machine = Machine()
    monkeypatch.setattr("time.perf_counter", lambda: machine.wall)
    monkeypatch.setattr("time.process_time", lambda: machine.cpu)
    found = compare_times(
        machine.program("keras", 1.0),
        {
            "half": machine.program("half", 0.5),
            "twice": machine.program("twice", 2.0, threads=2),
        },
        repetitions=5,
    )
    assert list(found) == ["half", "twice"]
    assert found["half"]["ratio"] == pytest.approx(0.5, rel=0.15)
    assert found["twice"]["ratio"] == pytest.approx(2.0, rel=0.15)
    assert found["half"]["busy_threads"] == pytest.approx(1)
    assert found["twice"]["busy_threads"] == pytest.approx(2)
    assert 1000 < found["half"]["keras_milliseconds"] < 4000
    # Twice in a row each, and nobody always first.
    assert machine.runs[::2] == machine.runs[1::2]
    assert machine.runs[:12:2] == [
        *("keras", "half", "twice"),
        *("twice", "keras", "half"),
    ]


@pytest.fixture(scope="module")
def model(shallow):
    return shallow


@pytest.fixture(scope="module")
def exports(model, images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("latency")
    paths = {
        "saved_model": folder / "1",
        "tflite": folder / "model.tflite",
        "tflite of 1": folder / "model1.tflite",
        "int8": folder / "int8.tflite",
        "unknown": folder / "model.txt",
        "missing": folder / "missing.tflite",
    }
    export_saved_model(model, str(paths["saved_model"]), images)
    for name, variant, batch_size in (
        ("tflite", "float32", None),
        ("tflite of 1", "float32", 1),
        ("int8", "int8", None),
    ):
        content = to_tflite(model, variant, batch_size, images)
        paths[name].write_bytes(content)
    paths["unknown"].touch()
    return paths


def test_every_format_is_really_run(model, exports, images, tmp_path):
    """Not only timed: the answers are those of the model to the noise."""
    expected = model.predict_on_batch(make_noise(SHAPE, "float32"))
    runs = [
        FORMATS[name].start(str(exports[name]), SHAPE, 1)
        for name in ("saved_model", "tflite")
    ]
    for name in ("onnx", "openvino"):
        pytest.importorskip(name)
        path = tmp_path / f"model{FORMATS[name].suffix}"
        getattr(keras_vit.export, f"export_{name}")(model, path, images)
        runs.append(FORMATS[name].start(str(path), SHAPE, 1))
    for run in runs:
        answers = run()
        answers = answers[0] if len(answers) == 1 else answers
        np.testing.assert_allclose(answers, expected, atol=1e-5)
    integers = FORMATS["tflite"].start(str(exports["int8"]), SHAPE, 1)()
    assert integers.dtype == "int8" and len(np.unique(integers)) > 5


@pytest.mark.slow
def test_processes_of_so_many_threads_measure_in_turn(
    model, exports, monkeypatch, tmp_path
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
    monkeypatch.setattr(
        keras_vit.export.latency, "PROGRAM", "import time" + program
    )
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
            assert row.busy_threads < 2.5
        else:
            assert row.ratio is row.milliseconds is None
    reasons = {row.name: row.reason for row in rows}
    assert "Dimension mismatch" in reasons["tflite of 1"]
    assert "must be a file that ends in" in reasons["unknown"]
    assert "missing.tflite" in reasons["missing"]


@pytest.fixture
def idle_processes(monkeypatch):
    """Start processes that import nothing and end without an answer.

    They take a second: a time limit that is not kept lets them end.
    """
    program = f"import time; print({READY!r}, flush=True); time.sleep(1)"
    monkeypatch.setattr(keras_vit.export.latency, "PROGRAM", program)


def test_rows_are_in_the_order_of_threads_and_exports(
    model, idle_processes, monkeypatch
):
    asked = []

    def run_process(process, folder, request):
        model = keras.saving.load_model(folder / "model.keras")
        asked.append((model.count_params(), dict(request)))
        return {name: {"ratio": 0.1} for name in request["exports"]}

    monkeypatch.setattr(keras_vit.export.latency, "run_process", run_process)
    rows = measure_latency(model, {"a": "x", "b": "y"}, (1, 3), 4, 5)
    assert rows == [
        Latency(name, threads, 4, ratio=0.1)
        for threads in (1, 3)
        for name in "ab"
    ]
    number, request = asked[1]
    assert number == model.count_params()
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

    monkeypatch.setattr(keras_vit.export.latency, "run_process", run_process)
    monkeypatch.setattr(keras_vit.export.latency, "set_threads", id)
    inputs = keras.Input((32, 24, 3))
    strange = keras.Model(inputs, Unknown()(inputs))
    (row,) = measure_latency(strange, {"a": exports["tflite"]}, [1])
    assert row.ratio is None
    assert "cannot load it: TypeError: Could not locate class" in row.reason


def test_what_goes_wrong_is_a_reason_and_no_error(
    model, exports, idle_processes, monkeypatch
):
    one = {"a": exports["tflite"]}

    class Lambda(keras.Model):
        def save(self, *args):
            raise NotImplementedError("it holds\na lambda")

    (row,) = measure_latency(Lambda(), one, [1])
    words = "the model cannot be saved: NotImplementedError: it holds a lambda"
    assert row == Latency("a", 1, 1, reason=words)
    with monkeypatch.context() as patch:
        patch.setattr(keras_vit.export.latency, "TIME_LIMIT", 0.001)
        (row,) = measure_latency(model, one, [2])
        assert row.reason == "it took longer than 0.001 s"
    monkeypatch.setattr("sys.executable", "false")
    rows = measure_latency(model, one | {"b": "c"}, [2])
    assert [row.reason for row in rows] == ["the process ended with 1: "] * 2


def test_threads_of_a_running_tensorflow_are_an_error():
    """They are not silently ignored."""
    make_model()
    with pytest.raises(RuntimeError, match="cannot be modified after"):
        set_threads(7)
