"""Waiting requests are computed together, with the outputs of each alone."""

import threading

import numpy as np
import pytest

from keras_vit.serving.server.batching import Batcher
from keras_vit.serving.server.limits import Limits
from tests.serving.server.running import (
    run_server,
    serve_functions,
    spec,
    wait_until,
)

PATH = "/v1/models/m:predict"
VECTOR = spec("DT_FLOAT", -1, -1)


class Recorder:
    """A model that remembers the sizes of its batches.

    Attributes:
        sizes: The rows of each batch that has begun.
        gate: What the inferences wait for before they compute.
    """

    def __init__(self):
        self.sizes = []
        self.gate = threading.Event()

    def double(self, x):
        self._begin(x)
        if np.isnan(x).any():
            raise ValueError("nan")
        return {"y": 2 * x}

    def mean(self, x):
        self._begin(x)
        return {"y": np.float32(x.mean())}

    def _begin(self, x):
        self.sizes.append(len(x))
        assert self.gate.wait(20)

    def signatures(self):
        pair = {"x": VECTOR}, {"y": VECTOR}
        return {
            "serving_default": (*pair, self.double),
            "other": (*pair, self.double),
            "mean": ({"x": VECTOR}, {"y": spec("DT_FLOAT")}, self.mean),
        }


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def arrived(monkeypatch):
    """The tasks that the server has put into its queue."""
    tasks, compute = [], Batcher.compute

    def count_and_compute(batcher, task):
        tasks.append(task)
        return compute(batcher, task)

    monkeypatch.setattr(Batcher, "compute", count_and_compute)
    return tasks


@pytest.fixture
def server(recorder, tmp_path):
    model = serve_functions(tmp_path, recorder.signatures())
    with run_server({"m": model}, limits=Limits(max_batch_size=4)) as address:
        yield address


@pytest.fixture
def ask_together(server, recorder, arrived):
    """Send the first, and the others while it is computed."""

    def ask_all(bodies):
        answers = [None] * len(bodies)

        def ask(index):
            answers[index] = server.post(PATH, bodies[index])

        threads = []
        for index in range(len(bodies)):
            threads.append(threading.Thread(target=ask, args=(index,)))
            threads[-1].start()
            wait_until(lambda: len(arrived) == len(threads) and recorder.sizes)
        recorder.gate.set()
        for thread in threads:
            thread.join()
        return answers

    return ask_all


def rows(*values, **more):
    return {"instances": [[float(value)] for value in values], **more}


def predictions(*values):
    return 200, {"predictions": [[2.0 * value] for value in values]}


def test_what_waits_goes_together(ask_together, recorder):
    requests = [(1,), (2,), (3, 4), (5,), (6, 7)]
    bodies = [rows(*values) for values in requests]
    answers = ask_together(bodies)
    assert answers == [predictions(*values) for values in requests]
    assert recorder.sizes == [1, 4, 2]


def test_only_the_same_signature_and_shapes_go_together(ask_together, recorder):
    bodies = [
        rows(1),
        rows(2),
        rows(3, signature_name="other"),
        {"instances": [[4.0, 5.0]]},
        rows(6),
    ]
    answers = ask_together(bodies)
    assert answers[3] == (200, {"predictions": [[8.0, 10.0]]})
    assert answers[4] == predictions(6)
    assert recorder.sizes == [1, 2, 1, 1]


def test_outputs_that_are_not_rows_stay_alone(ask_together, recorder):
    bodies = [
        {"inputs": [[float(i)]], "signature_name": "mean"} for i in range(3)
    ]
    answers = ask_together(bodies)
    assert answers == [(200, {"outputs": float(i)}) for i in range(3)]
    assert recorder.sizes == [1, 1, 1]


def test_one_wrong_request_does_not_spoil_the_others(ask_together, recorder):
    bodies = [rows(1), rows(2), rows("nan"), rows(3)]
    answers = ask_together(bodies)
    assert answers[1] == predictions(2) and answers[3] == predictions(3)
    assert answers[2][0] == 500
    assert recorder.sizes == [1, 3, 1, 1, 1]


def test_a_large_request_is_computed_in_parts(server, recorder):
    recorder.gate.set()
    assert server.post(PATH, rows(*range(10))) == predictions(*range(10))
    assert recorder.sizes == [4, 4, 2]
