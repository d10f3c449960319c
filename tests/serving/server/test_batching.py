"""What waits is computed together, and answered as if alone."""

import threading
import time

import numpy as np
import pytest

from keras_vit.serving.server.limits import Limits
from tests.serving.server.running import run_server, serve_functions, spec

PATH = "/v1/models/m:predict"
VECTOR = spec("DT_FLOAT", -1, -1)


class Recorder:
    """A model that remembers the sizes of its batches."""

    def __init__(self):
        self.sizes = []

    def slow(self, x):
        self.sizes.append(len(x))
        time.sleep(0.2)
        if np.isnan(x).any():
            raise ValueError("nan")
        return {"y": 2 * x}

    def mean(self, x):
        self.sizes.append(len(x))
        time.sleep(0.2)
        return {"y": np.float32(x.mean())}

    def signatures(self):
        pair = {"x": VECTOR}, {"y": VECTOR}
        return {
            "serving_default": (*pair, self.slow),
            "other": (*pair, self.slow),
            "mean": ({"x": VECTOR}, {"y": spec("DT_FLOAT")}, self.mean),
        }


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def server(recorder, tmp_path):
    model = serve_functions(tmp_path, recorder.signatures())
    with run_server({"m": model}, limits=Limits(max_batch_size=4)) as address:
        yield address


def ask_together(server, bodies):
    """Send the first, and the others while it is computed."""
    answers = [None] * len(bodies)

    def ask(index):
        answers[index] = server.post(PATH, bodies[index])

    threads = [
        threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))
    ]
    threads[0].start()
    time.sleep(0.08)
    for thread in threads[1:]:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    return answers


def rows(*values, **more):
    return {"instances": [[float(value)] for value in values], **more}


def predictions(*values):
    return 200, {"predictions": [[2.0 * value] for value in values]}


def test_what_waits_goes_together(server, recorder):
    requests = [(1,), (2,), (3, 4), (5,), (6, 7)]
    bodies = [rows(*values) for values in requests]
    answers = ask_together(server, bodies)
    assert answers == [predictions(*values) for values in requests]
    assert recorder.sizes == [1, 4, 2]


def test_only_the_same_signature_and_shapes_go_together(server, recorder):
    bodies = [
        rows(1),
        rows(2),
        rows(3, signature_name="other"),
        {"instances": [[4.0, 5.0]]},
        rows(6),
    ]
    answers = ask_together(server, bodies)
    assert answers[3] == (200, {"predictions": [[8.0, 10.0]]})
    assert answers[4] == predictions(6)
    assert recorder.sizes == [1, 2, 1, 1]


def test_outputs_that_are_not_rows_stay_alone(server, recorder):
    bodies = [
        {"inputs": [[float(i)]], "signature_name": "mean"} for i in range(3)
    ]
    answers = ask_together(server, bodies)
    assert answers == [(200, {"outputs": float(i)}) for i in range(3)]
    assert recorder.sizes == [1, 1, 1]


def test_one_wrong_request_does_not_spoil_the_others(server, recorder):
    bodies = [rows(1), rows(2), rows("nan"), rows(3)]
    answers = ask_together(server, bodies)
    assert answers[1] == predictions(2) and answers[3] == predictions(3)
    assert answers[2][0] == 500
    assert recorder.sizes == [1, 3, 1, 1, 1]


def test_a_large_request_is_computed_in_parts(server, recorder):
    assert server.post(PATH, rows(*range(10))) == predictions(*range(10))
    assert recorder.sizes == [4, 4, 2]
