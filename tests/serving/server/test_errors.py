"""The errors of TF Serving: their statuses and texts, each in its case."""

import json

import ml_dtypes
import numpy as np
import pytest

from keras_vit.serving.server.versions import ServedModel
from tests.serving.server.running import make_model, run_server, spec


def ones(count=None, dtype="float32"):
    shape = () if count is None else (count,)
    return np.ones(shape, dtype)


X, Y = {"x": spec("DT_FLOAT", -1, 3)}, {"y": spec("DT_FLOAT", -1)}
XY = {name: spec("DT_FLOAT", -1) for name in "xy"}
MODEL = make_model(
    {
        "serving_default": (X, Y, lambda x: {"y": x.sum(1)}),
        "any": (
            {
                "x": {
                    "dtype": "DT_FLOAT",
                    "name": "",
                    "tensor_shape": {"unknown_rank": True},
                }
            },
            Y,
            lambda x: {"y": x},
        ),
        "two": (XY, Y, lambda x, y: {"y": x + y}),
        "text": ({"s": spec("DT_STRING", -1)}, Y, lambda s: {"y": s}),
        "small": ({"n": spec("DT_UINT8", -1)}, Y, lambda n: {"y": n}),
        "long": ({"n": spec("DT_INT64", -1)}, Y, lambda n: {"y": n}),
        "flag": ({"b": spec("DT_BOOL", -1)}, Y, lambda b: {"y": b}),
        "half": ({"x": spec("DT_HALF", -1)}, Y, lambda x: {"y": x}),
        "scalar": (X, {"y": spec("DT_FLOAT")}, lambda x: {"y": ones()}),
        "uneven": (X, XY, lambda x: {"x": ones(1), "y": ones(2)}),
        "bfloat16": (X, Y, lambda x: {"y": ones(1, ml_dtypes.bfloat16)}),
    }
)
ROW = [[1, 2, 3]]
PREFIX = (
    "Failed to process element: 0 of 'instances' list. Error: "
    "INVALID_ARGUMENT: "
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("m")
    (folder / "1").mkdir()
    model = ServedModel("m", folder, load=lambda path: MODEL)
    model.poll()
    with run_server({"m": model}) as address:
        yield address


def pretty(value):
    return json.dumps(value, indent=4)


def of(signature, **body):
    return {"signature_name": signature, **body}


CASES = [
    ("", "JSON Parse error: The document is empty"),
    (" \n", "JSON Parse error: The document is empty. at offset: 2"),
    ("no", "JSON Parse error: Invalid value. at offset: 0"),
    ('{"ä": x}', "JSON Parse error: Invalid value. at offset: 7"),
    (
        '{"a" 1}',
        "JSON Parse error: Missing a colon after a name of object member. at "
        "offset: 5",
    ),
    (
        "{1}",
        "JSON Parse error: Missing a name for object member. at offset: 1",
    ),
    (
        '{"a": "',
        "JSON Parse error: Missing a closing quotation mark in string. at "
        "offset: 6",
    ),
    ("[" * 100_000, "JSON Parse error: Nested too deeply."),
    (
        '{"instances": [' + "9" * 5000 + "]}",
        "JSON Parse error: Number too big to be stored in double.",
    ),
    (
        '{"instances": [[' + "9" * 400 + ", 1, 2]]}",
        PREFIX + "JSON Parse error: Number too big to be stored in double.",
    ),
    ([1], f"JSON Value: {pretty([1])} Is not object"),
    (
        {"signature_name": 1},
        f"JSON Value: {pretty({'signature_name': 1})} not formatted correctly. "
        "'signature_name' key must be a string value.",
    ),
    (
        of("s", instances=ROW),
        'Serving signature name: "s" not found in signature def',
    ),
    ({}, "Missing 'inputs' or 'instances' key"),
    (
        {"inputs": 1, "instances": 1},
        f"JSON Value: {pretty({'inputs': 1, 'instances': 1})} Not formatted "
        "correctly expecting only one of 'inputs' or 'instances' keys to "
        "exist ",
    ),
    (
        {"instances": 1},
        f"JSON Value: {pretty({'instances': 1})} Expecting 'instances' to be "
        "an list/array",
    ),
    (
        {"instances": []},
        f"JSON Value: {pretty({'instances': []})} No values in 'instances' "
        "array",
    ),
    (
        of("two", instances=[1]),
        "instances is a plain list, but expecting list of objects as multiple "
        "input tensors required as per tensorinfo_map",
    ),
    (
        of("two", inputs=[1]),
        "inputs is a plain value/list, but expecting an object as multiple "
        "input tensors required as per tensorinfo_map",
    ),
    (
        of("two", instances=[{"x": 1}]),
        f"Failed to process element: 0 of 'instances' list. JSON object: "
        f"{pretty({'x': 1})} keys must be equal to: x,y",
    ),
    (
        of("two", instances=[{"x": 1, "y": 2, "z": 3}]),
        "Failed to process element: 0 key: z of 'instances' list. Error: "
        "INVALID_ARGUMENT: JSON object: does not have named input: z",
    ),
    (
        of("two", instances=[{"x": 1, "y": 2}, 3]),
        "Expecting object but got list at item 1 of input list",
    ),
    (
        {"instances": [[1, 2, 3], {"x": [1, 2, 3]}]},
        "Expecting value/list but got object at item 1 of input list",
    ),
    (of("two", inputs={"y": 1}), "Missing named input: x in 'inputs' object."),
    (
        {"instances": [["a", 1, 2]]},
        PREFIX + 'JSON Value: "a" Type: String is not of expected type: float',
    ),
    (
        {"inputs": [[1, True, 2]]},
        "JSON Value: true Type: True is not of expected type: float",
    ),
    (
        {"inputs": [[1, {"b64": "AA=="}, 2]]},
        f"JSON Value: {pretty({'b64': 'AA=='})} Type: Object is not of "
        "expected type: float",
    ),
    (
        of("small", inputs=[1.0]),
        "JSON Value: 1.0 Type: Number is not of expected type: uint8",
    ),
    (
        of("small", inputs=[1, 300]),
        "JSON Value: 300 Type: Number is not of expected type: uint8",
    ),
    (
        of("long", inputs=[2**63]),
        f"JSON Value: {2**63} Type: Number is not of expected type: int64",
    ),
    (
        of("flag", inputs=[1]),
        "JSON Value: 1 Type: Number is not of expected type: bool",
    ),
    (
        of("text", inputs=[None]),
        "JSON Value: null Type: Null is not of expected type: string",
    ),
    (
        {"inputs": [[1, 2, 3], [1, 2]]},
        "Encountered list at unexpected size: 2 at level: 1 expected size: 3",
    ),
    (
        {"inputs": [1, [2]]},
        "Encountered list at unexpected level: 1 expected < 1",
    ),
    (
        {"inputs": [[1], 2]},
        "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected "
        "at level: 2",
    ),
    (
        {"instances": [[1, 2, 3], [1, 2]]},
        "Failed to process element: 1 of 'instances' list. Error: "
        "INVALID_ARGUMENT: Expecting tensor size: 3 but got: 2",
    ),
    (
        {"instances": [[[1, 2, 3]], [[1], [2], [3]]]},
        "Failed to process element: 1 of 'instances' list. Error: "
        "INVALID_ARGUMENT: Expecting shape [1,3] but got: [3,1]",
    ),
    (
        of("text", inputs=[{"b64": 1}]),
        f"JSON Value: {pretty({'b64': 1})} not formatted correctly for base64 "
        "data",
    ),
    (of("text", inputs=[{"b64": "?"}]), "Unable to base64 decode"),
    (
        of("text", inputs=["\ud800"]),
        "JSON Parse error: The surrogate pair in string is invalid.",
    ),
    (
        of("scalar", instances=ROW),
        "Tensor name: y has no shape information ",
    ),
    (
        of("uneven", instances=ROW),
        "Tensor name: y has inconsistent batch size: 2 expecting: 1",
    ),
    (
        of("bfloat16", inputs=ROW),
        "Failed to write JSON value for tensor type: bfloat16",
    ),
    (
        {"instances": [[1, 2]]},
        "Shape of tensor x [1,2] is not compatible with expected shape [?,3].",
    ),
    (
        {"instances": [[[1, 2, 3]]]},
        "Shape of tensor x [1,1,3] is not compatible with expected shape "
        "[?,3].",
    ),
    (
        {"inputs": [[0, 0, 0]] * 1025},
        "A request may hold 1,024 instances. Received: 1,025",
    ),
]


@pytest.mark.parametrize("body, message", CASES)
def test_wrong_requests(server, body, message):
    body = body if isinstance(body, str) else json.dumps(body)
    assert server.post("/v1/models/m:predict", body) == (
        400,
        {"error": message},
    )


@pytest.mark.parametrize(
    "method, path, status, message",
    [
        (
            "POST",
            "/v1/models/x:predict",
            404,
            "Servable not found for request: Latest(x)",
        ),
        (
            "POST",
            "/v1/models/m/versions/99:predict",
            404,
            "Servable not found for request: Specific(m, 99)",
        ),
        (
            "POST",
            "/v1/models/m/labels/L:predict",
            400,
            "Unrecognized servable version label: L",
        ),
        (
            "POST",
            "/v1/models/m:PREDICT",
            400,
            "Malformed request: POST /v1/models/m:PREDICT",
        ),
        (
            "POST",
            "/v1/models/m:predict?x=1",
            400,
            "Malformed request: POST /v1/models/m:predict?x=1",
        ),
        (
            "POST",
            "/v1/models/m/metadata",
            400,
            "Malformed request: POST /v1/models/m/metadata",
        ),
        (
            "GET",
            "/v1/models/m:predict",
            400,
            "Malformed request: GET /v1/models/m:predict",
        ),
        ("PUT", "/v1/models/m", 400, "Malformed request: PUT /v1/models/m"),
        ("GET", "/v1/models/m/", 400, "Malformed request: GET /v1/models/m/"),
        (
            "GET",
            "/v1/models/m/version/5",
            400,
            "Malformed request: GET /v1/models/m/version/5",
        ),
        (
            "GET",
            "/v1/models/m/versions/HELLO",
            400,
            "Malformed request: GET /v1/models/m/versions/HELLO",
        ),
        (
            "GET",
            "/v1/models/m/versions/1/labels/x",
            400,
            "Malformed request: GET /v1/models/m/versions/1/labels/x",
        ),
        ("GET", "/v1/foo", 400, "Malformed request: GET /v1/foo"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/x", 404, "Could not find any versions of model x"),
        (
            "GET",
            "/v1/models/m/versions/99",
            404,
            "Could not find version 99 of model m",
        ),
        (
            "GET",
            "/v1/models/x/metadata",
            404,
            "Servable not found for request: Latest(x)",
        ),
        (
            "GET",
            "/v1/models/m/versions/99/metadata",
            404,
            "Servable not found for request: Specific(m, 99)",
        ),
        (
            "GET",
            "/v1/models/m/labels/L/metadata",
            400,
            "Unrecognized servable version label: L",
        ),
        ("GET", "/other", 404, "There is no /other"),
    ],
)
def test_wrong_addresses(server, method, path, status, message):
    body = {"instances": ROW} if method == "POST" else None
    found, headers, data = server.ask(path, body, method)
    assert (found, json.loads(data)) == (status, {"error": message})
    assert headers["content-type"] == "application/json"


def test_a_version_beyond_int64_has_no_text(server):
    """As TF Serving's."""
    path = f"/v1/models/m/versions/{2**63}"
    assert server.ask(path)[::2] == (400, b"")
    assert server.ask(f"{path}:predict", {})[::2] == (400, b"")


def test_the_body_is_looked_at_before_the_model(server):
    status, answer = server.post("/v1/models/x:predict", "[]")
    assert status == 400
    assert answer == {"error": "JSON Value: [] Is not object"}
    status, _ = server.post("/v1/models/x:predict", {"instances": 1})
    assert status == 404


def test_a_type_that_json_cannot_hold(server):
    answer = server.post("/v1/models/m:predict", of("half", inputs=[1]))
    assert answer[0] == 501


def test_long_values_are_cut(server):
    body = {"instances": "x" * 10_000}
    _, answer = server.post("/v1/models/m:predict", body)
    assert len(answer["error"]) < 350 and '"xx' in answer["error"]


@pytest.mark.parametrize(
    "body, message",
    [
        (
            {},
            "JSON Value: {} When method is classify, key 'examples' is "
            "expected and was not found",
        ),
        (
            {"examples": []},
            f"JSON Value: {pretty({'examples': []})} 'examples' value is an "
            "empty array",
        ),
        ({"examples": [1]}, "Example must be JSON object but got JSON Number"),
        (
            {"examples": [{"a": None}]},
            "Feature: a has element with unexpected JSON type: Null",
        ),
        (
            {"examples": [{"a": [1, 2.0]}]},
            "Unexpected element type in feature: a expecting type: int64",
        ),
        (
            {"examples": [{"a": 1}]},
            "Expected classification signature method_name to be "
            "tensorflow/serving/classify. Was: tensorflow/serving/predict",
        ),
        (
            of("s", examples=[{"a": 1}]),
            "No signature was found with the name: s",
        ),
    ],
)
def test_classify_without_a_signature_for_it(server, body, message):
    answer = server.post("/v1/models/m:classify", body)
    assert answer == (400, {"error": message})


def test_what_is_accepted(server):
    """What Python's reader of JSON, or a stricter server, would refuse."""
    path = "/v1/models/m:predict"
    for body, expected in (
        ('{"instances": [[1, 2, 3]]} and more', [6.0]),
        ('\ufeff {"instances": [[1e39, 2, 3]], "other": 1}', [np.inf]),
        ('{"instances": [[NaN, -Infinity, 3]]}', [np.nan]),
    ):
        status, answer = server.post(path, body.encode())
        assert status == 200
        np.testing.assert_equal(answer["predictions"], expected)
    text = b'{"signature_name": "text", "inputs": ["\xff", {"b64": "_"}]}'
    status, answer = server.post(path, text)
    assert status == 400
    for value in (b'"\xff\xc3"', b'{"b64": "/8M="}', b'{"b64": " /8 M"}'):
        body = b'{"signature_name": "text", "inputs": [%s]}' % value
        assert server.ask(path, body)[2] == b'{"outputs": ["\xff\xc3"]}'
    _, answer = server.post(path, of("any", inputs=0.1))
    assert answer == {"outputs": 0.1}
    _, answer = server.post(path, of("any", inputs=[]))
    assert answer == {"outputs": []}
