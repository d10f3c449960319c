"""The requests of the benchmark of the load."""

import collections

import pytest
import tensorflow as tf

from benchmarks import serve_load


def test_good_requests_are_right_and_faults_refused(served, zoo):
    loaded = tf.saved_model.load(str(zoo / "zoo" / "3"))
    files = serve_load.make_jpegs(2)
    faults = serve_load.make_faults(files[0])
    found = loaded.signatures["serve_bytes"](image_bytes=tf.constant(files))
    answers = [
        {
            "labels": [label.decode() for label in labels],
            "probabilities": numbers.tolist(),
        }
        for labels, numbers in zip(
            found["labels"].numpy(), found["probabilities"].numpy()
        )
    ]
    requests = [*zip(map(serve_load.make_body, files), answers)]
    requests += [(body, None) for body in faults]
    outcomes, _ = serve_load.send_all(served, requests, 4)
    swapped, _ = serve_load.send_all(served, [(requests[0][0], answers[1])], 1)
    assert outcomes == {"right": 2, "refused": len(faults)}
    assert swapped == {"wrong": 1}


def test_another_outcome_is_an_error():
    outcomes = collections.Counter({"right": 9, "fault 500": 1})
    with pytest.raises(RuntimeError, match="fault 500"):
        serve_load.check_outcomes(outcomes, {"right", "refused"})
