"""The call `classify` of a model that has a signature for it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.serving.server.running import (
    make_model,
    poll_model,
    run_server,
    spec,
)

INPUTS = {"inputs": spec("DT_STRING", -1)}


def classify(inputs):
    """Return the features `a` and `b` as scores, `name` as a class."""
    examples = [tf.train.Example.FromString(x).features.feature for x in inputs]
    return {
        "classes": np.array(
            [[b"a", x["name"].bytes_list.value[0]] for x in examples], object
        ),
        "scores": np.array(
            [
                [x["a"].float_list.value[0], sum(x["b"].int64_list.value)]
                for x in examples
            ],
            "float32",
        ),
    }


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    outputs = {"classes": spec("DT_STRING"), "scores": spec("DT_FLOAT")}
    signature = INPUTS, outputs, classify
    made = make_model({"serving_default": signature, "other": signature})
    row = made.signature_defs["serving_default"]
    row["method_name"] = "tensorflow/serving/classify"
    folder = tmp_path_factory.mktemp("m")
    (folder / "1").mkdir()
    model = poll_model("m", folder, lambda path: made)
    with run_server({"m": model}) as address:
        yield address


def test_examples_and_their_context(address):
    body = {
        "context": {"name": "dög", "a": 0.1},
        "examples": [
            {"b": [1, True]},
            {"b": 7, "a": [2.5], "name": {"b64": "?"}},
        ],
    }
    assert address.post("/v1/models/m:classify", body)[0] == 400
    body["examples"][1]["name"] = {"b64": "eA"}
    assert address.post("/v1/models/m:classify", body) == (
        200,
        {"results": [[["a", 0.1], ["dög", 2.0]], [["a", 2.5], ["x", 7.0]]]},
    )


@pytest.mark.parametrize(
    "body, message",
    [
        ({}, "'examples' must be a list with values"),
        ({"examples": []}, "'examples' must be a list with values"),
        ({"examples": [1]}, "each example must be an object"),
        (
            {"examples": [{"a": None}]},
            "Wrong values for a: None is not of type string",
        ),
        (
            {"examples": [{"a": [1, 2.0]}]},
            "Wrong values for a: 1 is not of type string",
        ),
        ({"examples": [{"b": 2**63}]}, "Wrong values for b: Value out of"),
        (
            {"signature_name": "other", "examples": [{"a": 1}]},
            "No signature 'other' for classify found",
        ),
    ],
)
def test_wrong_examples(address, body, message):
    status, answer = address.post("/v1/models/m:classify", body)
    assert status == 400 and message in answer["error"]
