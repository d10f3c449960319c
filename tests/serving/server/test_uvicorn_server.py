"""The server with an exported model, as clients see it."""

import base64

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.serving import ServingError, connect
from keras_vit.serving.checks import check_server
from keras_vit.serving.exported_version import read_version
from tests.serving.made import NAMES, SIGNATURES, make_files


def test_serve_check_passes(served, zoo):
    export = read_version(zoo / "zoo" / "3")
    with connect(served, model="zoo", version=3) as client:
        checks = list(check_server(client, export, 1e-5))
    assert not [check for check in checks if check.fault]
    assert len(checks) == 2 + 3 * len(SIGNATURES)


def test_classes_of_files(served, loaded):
    files = make_files(4)
    with connect(served, model="zoo") as client:
        found = client.classify(files)
    expected = loaded.signatures["serve_bytes"](image_bytes=tf.constant(files))
    labels = [[x.decode() for x in row] for row in expected["labels"].numpy()]
    assert [[label for label, _ in row] for row in found] == labels
    np.testing.assert_allclose(
        [[number for _, number in row] for row in found],
        expected["probabilities"],
        rtol=1e-5,
    )
    assert {label for row in labels for label in row} <= set(NAMES)


def test_forms_of_requests_give_the_same(served):
    images = np.random.default_rng(0).uniform(-1, 1, (3, 8, 12, 3))
    images = images.astype("float32").tolist()
    answers = [
        served.post("/v1/models/zoo:predict", body)
        for body in (
            {"instances": images},
            {"instances": [{"images": image} for image in images]},
            {"inputs": images},
            {"inputs": {"images": images, "other": 1}},
            {"instances": images, "signature_name": ""},
        )
    ]
    assert {status for status, _ in answers} == {200}
    found = [next(iter(answer.values())) for _, answer in answers]
    assert all(each == found[0] for each in found[1:])
    forms = [[*answer] for _, answer in answers]
    assert forms == [["predictions"]] * 2 + [["outputs"]] * 2 + [
        ["predictions"]
    ]
    assert np.shape(found[0]) == (3, 7)
    body = {"signature_name": "serve_bytes"}
    content = base64.b64encode(make_files(1)[0]).decode()
    body["instances"] = [{"b64": content.rstrip("=")}]
    _, rows = served.post("/v1/models/zoo:predict", body)
    body["instances"] = [{"image_bytes": {"b64": content}}]
    assert served.post("/v1/models/zoo:predict", body)[1] == rows
    del body["instances"]
    body["inputs"] = {"image_bytes": [{"b64": content}]}
    _, columns = served.post("/v1/models/zoo/versions/3:predict", body)
    [row] = rows["predictions"]
    assert {n: [x] for n, x in row.items()} == columns["outputs"]


def test_status_and_metadata_are_tf_servings(served, zoo):
    status, answer = served.get("/v1/models/zoo")
    assert status == 200
    assert answer == {
        "model_version_status": [
            {
                "version": "3",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    assert served.get("/v1/models/zoo/versions/3") == (status, answer)
    status, answer = served.get("/v1/models/zoo/metadata")
    assert answer["model_spec"] == {
        "name": "zoo",
        "signature_name": "",
        "version": "3",
    }
    found = answer["metadata"]["signature_def"]["signature_def"]
    signature = found["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    images = signature["inputs"]["images"]
    assert images["dtype"] == "DT_FLOAT"
    assert images["tensor_shape"]["dim"][1] == {"size": "8", "name": ""}
    assert set(SIGNATURES) <= set(found)
    assert served.get("/v1/models/zoo/versions/3/metadata")[1] == answer


def test_health_and_metrics(served):
    assert served.get("/healthz") == (200, {"status": "ok"})
    with connect(served, model="zoo") as client:
        client.classify(make_files(1))
    served.post("/v1/models/zoo:predict", {"instances": [1]})
    served.post("/v1/models/made_up:predict", {"instances": [1]})
    status, headers, data = served.ask("/monitoring/prometheus/metrics")
    text = data.decode()
    assert headers["content-type"].startswith("text/plain")
    name = ":tensorflow:serving:request_count"
    assert f'{name}{{model_name="zoo",status="INVALID_ARGUMENT"}} ' in text
    assert "made_up" not in text and 'model_name="unknown"' in text
    assert (
        ':tensorflow:serving:request_latency_bucket{model_name="zoo",' in text
    )
    assert 'API="predict",entrypoint="REST",le="10"} ' in text


def test_a_client_is_told_what_is_wrong(served):
    with connect(served, model="zoo") as client:
        with pytest.raises(
            ServingError, match="Shape of tensor images"
        ) as info:
            client.predict({"images": np.zeros((2, 4, 12, 3), "float32")})
    assert info.value.code == "INVALID_ARGUMENT"
