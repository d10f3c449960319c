"""Wrong requests: each gets a 4xx whose text names the fault."""

import json

import ml_dtypes
import numpy as np
import pytest

from tests.serving.server.running import run_server, serve_functions, spec


def ones(count=None, dtype="float32"):
    shape = () if count is None else (count,)
    return np.ones(shape, dtype)


X, Y = {"x": spec("DT_FLOAT", -1, 3)}, {"y": spec("DT_FLOAT", -1)}
XY = {name: spec("DT_FLOAT", -1) for name in "xy"}
SIGNATURES = {
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
    "resource": ({"x": spec("DT_RESOURCE", -1)}, Y, lambda x: {"y": x}),
    "half": ({"x": spec("DT_HALF", -1)}, Y, lambda x: {"y": x}),
    "scalar": (X, {"y": spec("DT_FLOAT")}, lambda x: {"y": ones()}),
    "uneven": (X, XY, lambda x: {"x": ones(1), "y": ones(2)}),
    "bfloat16": (X, Y, lambda x: {"y": ones(1, ml_dtypes.bfloat16)}),
}
ROW = [[1, 2, 3]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = serve_functions(tmp_path_factory.mktemp("m"), SIGNATURES)
    with run_server({"m": model}) as address:
        yield address


def of(signature, **body):
    return {"signature_name": signature, **body}


@pytest.mark.parametrize(
    "body, message",
    [
        ("", "JSON Parse error: Expecting value"),
        ("no", "JSON Parse error: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": "\xff"}', "JSON Parse error: 'utf-8' codec can't decode"),
        ("[" * 100_000, "JSON Parse error: maximum recursion depth"),
        ('{"inputs": %s}' % ("9" * 5000), "JSON Parse error: Exceeds"),
        (
            '{"instances": [[%s, 1, 2]]}' % ("9" * 400),
            "Wrong values for x: int too large to convert to float",
        ),
        ("[1]", "A request must be a JSON object"),
        ({"signature_name": 1}, "No signature 1 for predict found"),
        (of(["s"], instances=ROW), "No signature ['s'] for predict found"),
        (of("s", instances=ROW), "No signature 's' for predict found"),
        ({}, "must have one of the keys 'instances' and 'inputs'"),
        ({"inputs": 1, "instances": 1}, "must have one of the keys"),
        ({"instances": 1}, "'instances' must be a list with values"),
        ({"instances": []}, "'instances' must be a list with values"),
        (of("two", instances=[1]), "must be an object with the keys x, y"),
        (of("two", inputs=[1]), "must be an object with the keys x, y"),
        (
            of("two", instances=[{"x": 1}]),
            "Item 0 of 'instances' must be an object with the keys x, y",
        ),
        (
            of("two", instances=[{"x": 1, "y": 2}, {"x": 1, "y": 2, "z": 3}]),
            "Item 1 of 'instances' must be an object with the keys x, y",
        ),
        (of("two", instances=[{"x": 1, "y": 2}, 3]), "Item 1 of 'instances'"),
        ({"instances": [[1, 2, 3], {"x": [1, 2, 3]}]}, "Item 0 of"),
        (of("two", inputs={"y": 1}), "must be an object with the keys x, y"),
        (
            {"instances": [["a", 1, 2]]},
            "Wrong values for x: 'a' is not of type float32",
        ),
        ({"inputs": [[1, True, 2]]}, "True is not of type float32"),
        ({"inputs": [[1, {"b64": "AA=="}, 2]]}, "is not of type float32"),
        ({"inputs": [["x" * 10_000, 1, 2]]}, "is not of type float32"),
        (of("small", inputs=[1.0]), "1.0 is not of type uint8"),
        (of("small", inputs=[1, 300]), "out of the range of uint8"),
        (of("long", inputs=[2**63]), "out of the range of int64"),
        (of("flag", inputs=[1]), "1 is not of type bool"),
        (of("text", inputs=[None]), "None is not of type string"),
        ({"inputs": [[1, 2, 3], [1, 2]]}, "a list has 2 to 3 items"),
        ({"inputs": [1, [2]]}, "[2] is not of type float32"),
        ({"inputs": [[1], 2]}, "[1] is not of type float32"),
        (
            {"instances": [[[1, 2, 3]], [[1], [2], [3]]]},
            "a list has 1 to 3 items",
        ),
        (of("text", inputs=[{"b64": 1}]), 'is not {"b64": TEXT}'),
        (of("text", inputs=[{"b64": "?"}]), "Wrong values for s: "),
        (of("text", inputs=["\ud800"]), "Wrong values for s: 'utf-8' codec"),
        (of("resource", inputs=[1]), "1 is not of type DT_RESOURCE"),
        (of("scalar", instances=ROW), "outputs are not rows; use 'inputs'"),
        (of("uneven", instances=ROW), "outputs are not rows; use 'inputs'"),
        (of("bfloat16", inputs=ROW), "no numbers of type bfloat16 for y"),
        (
            {"instances": [[1, 2]]},
            "Shape of tensor x (1, 2) is not compatible with expected shape "
            "(None, 3)",
        ),
        ({"instances": [[[1, 2, 3]]]}, "Shape of tensor x (1, 1, 3) is not"),
        ({"inputs": ROW * 1025}, "A request must hold 1 to 1,024 instances"),
        (of("text", inputs=[]), "A request must hold 1 to 1,024 instances"),
    ],
)
def test_wrong_requests(server, body, message):
    body = json.dumps(body) if isinstance(body, dict) else body
    status, answer = server.post("/v1/models/m:predict", body)
    assert (status, [*answer]) == (400, ["error"])
    assert message in answer["error"] and len(answer["error"]) < 200


@pytest.mark.parametrize(
    "method, path, status, message",
    [
        ("POST", "/x:predict", 404, "Latest(x)"),
        ("POST", "/m/versions/99:predict", 404, "Specific(m, 99)"),
        ("POST", f"/m/versions/{'9' * 5000}:predict", 404, "Specific(m, 99"),
        ("GET", "/x", 404, "Servable not found for request: Latest(x)"),
        ("GET", "/m/versions/99", 404, "Specific(m, 99)"),
        ("GET", "/x/metadata", 404, "Latest(x)"),
        ("GET", "/m/versions/99/metadata", 404, "Specific(m, 99)"),
        ("GET", "/../../other", 404, "Not Found"),
    ],
)
def test_wrong_addresses(server, method, path, status, message):
    body = {"instances": ROW} if method == "POST" else None
    found, headers, data = server.ask(f"/v1/models{path}", body, method)
    assert (found, message in json.loads(data)["error"]) == (status, True)
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "models/m/labels/stable:predict"),
        ("GET", "models/m/labels/stable"),
        ("GET", "models/m:predict"),
        ("GET", "models/x:predict"),
        ("GET", "models/m/versions/7:predict"),
        ("POST", "models/m/versions/new:predict"),
        ("GET", "models/m/versions/new/metadata"),
        ("POST", "models/m:PREDICT"),
        ("POST", "models/m:other:predict"),
        ("POST", "models/m:regress"),
        ("POST", "models/m/metadata"),
        ("POST", "models/m"),
        ("PUT", "models/m"),
        ("GET", "models/m/"),
        ("GET", "models/m/version/5"),
        ("GET", "models"),
        ("GET", ""),
    ],
)
def test_addresses_that_do_not_exist(server, method, path):
    """As in TF Serving."""
    body = {"instances": ROW} if method == "POST" else None
    status, headers, data = server.ask(f"/v1/{path}", body, method)
    error = f"Malformed request: {method} /v1/{path}"
    assert (status, json.loads(data)) == (400, {"error": error})
    assert headers["content-type"] == "application/json"


def test_the_rest_of_the_server_answers_as_any_other(server):
    assert server.ask("/v1")[0] == server.ask("/v2/models/m")[0] == 404
    assert server.ask("/healthz", method="POST")[0] == 405


def test_the_body_is_looked_at_before_the_model(server):
    """As in TF Serving."""
    assert server.post("/v1/models/x:predict", "[]")[0] == 400
    assert server.post("/v1/models/x:predict", {"instances": 1})[0] == 404


def test_what_is_accepted(server):
    """Requests that a stricter server would refuse."""
    path = "/v1/models/m:predict"
    for body, expected in (
        ('{"instances": [[1e39, 2, 3]], "other": 1}', [np.inf]),
        ('{"instances": [[NaN, -Infinity, 3]]}', [np.nan]),
    ):
        status, answer = server.post(path, body)
        assert status == 200
        np.testing.assert_equal(answer["predictions"], expected)
    # The padding of base64 may be missing; outputs need not be UTF-8.
    for value, text in (('"ß"', "ß".encode()), ('{"b64": "/8M"}', b"\xff\xc3")):
        body = f'{{"signature_name": "text", "inputs": [{value}]}}'.encode()
        assert server.ask(path, body)[2] == b'{"outputs": ["%s"]}' % text
    _, answer = server.post(path, of("any", inputs=0.1))
    assert answer == {"outputs": 0.1}
    _, answer = server.post(path, of("half", inputs=[0.5, 2]))
    assert answer == {"outputs": [0.5, 2.0]}
