"""The small server over HTTP: requests and their answers."""

import base64
import concurrent.futures
import contextlib
import datetime
import functools
import gzip
import http.client
import json
import re
import struct
import threading
import time
import zlib

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.serving import ServingError, connect
from keras_vit.serving.models import ServedModel
from keras_vit.serving.server import _Batcher, tiff_to_png
from keras_vit.serving.tf_serving import read_version
from tests.pictures import encode
from tests.serving.made import SIGNATURES, make_files
from tests.serving.running import (
    POOL,
    in_threads,
    of_files,
    run_server,
    serve_functions,
    spec,
    wait_until,
)
from trainers.data.decoding import PixelOptions, decode_file
from trainers.server_check import check_server

ZOO, PATH = "/v1/models/zoo:predict", "/v1/models/m:predict"
X, Y = {"x": spec("DT_FLOAT", -1, 3)}, {"y": spec("DT_FLOAT", -1)}
XY = {name: spec("DT_FLOAT", -1) for name in "xy"}


def fail(x):
    raise MemoryError


FUNCTIONS = {
    "serving_default": (X, Y, lambda x: {"y": x.sum(1)}),
    "two": (XY, Y, lambda x, y: {"y": x + y}),
    "text": ({"s": spec("DT_STRING", -1)}, Y, lambda s: {"y": s}),
    "small": ({"n": spec("DT_UINT8", -1)}, Y, lambda n: {"y": n}),
    "long": ({"n": spec("DT_INT64", -1)}, Y, lambda n: {"y": n}),
    "flag": ({"b": spec("DT_BOOL", -1)}, Y, lambda b: {"y": b}),
    "resource": ({"x": spec("DT_RESOURCE", -1)}, Y, lambda x: {"y": x}),
    "half": ({"x": spec("DT_HALF", -1)}, Y, lambda x: {"y": x}),
    "bfloat16": (X, Y, lambda x: {"y": np.ones(1, ml_dtypes.bfloat16)}),
    "broken": (X, Y, fail),
    "uneven": (X, Y, lambda x: {"y": np.ones(2, "float32")}),
}
ROW = [[1, 2, 3]]
ORIENTATION = 0x0112  # Tag of TIFF.


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """Return a server of Python functions with a small limit of bodies."""
    model = serve_functions(tmp_path_factory.mktemp("m"), FUNCTIONS)
    with run_server({"m": model}, "--max_body_bytes=200000") as address:
        yield address


def of(signature, **body):
    return {"signature_name": signature, **body}


@pytest.mark.parametrize(
    "body, message",
    [
        ("no", "JSON Parse error: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": "\xff"}', "JSON Parse error: 'utf-8' codec can't decode"),
        ("[" * 100_000, "JSON Parse error: maximum recursion depth"),
        ('{"instances": [[%s, 1, 2]]}' % ("9" * 400), "is not of type float32"),
        ("[1]", "A request must be a JSON object"),
        (of(["s"], instances=ROW), "No signature ['s'] found"),
        (of("s", instances=ROW), "No signature 's' found"),
        ({"inputs": 1, "instances": 1}, "must have one of the keys"),
        ({}, "must have one of the keys"),
        ({"instances": []}, "'instances' must be a list with values"),
        (of("two", inputs=[1]), "must be an object with the keys x, y"),
        (of("two", inputs={"y": 1}), "must be an object with the keys x, y"),
        (of("two", instances=[{"x": 1, "y": 2}, {"x": 1}]), "the keys x, y"),
        (of("two", instances=[{"x": 1, "y": 2}, 3]), "the keys x, y"),
        ({"instances": [["a", 1, 2]]}, "'a', 1, 2]] is not of type float32"),
        ({"inputs": [[1, None, 2]]}, "None, 2]] is not of type float32"),
        ({"inputs": [[1, {"b64": "AA=="}, 2]]}, "is not of type float32"),
        (of("small", inputs=[1.0]), "[1.0] is not of type uint8"),
        (of("small", inputs=[1, 300]), "out of the range of uint8"),
        (of("long", inputs=[2**63]), "out of the range of int64"),
        (of("flag", inputs=[1]), "[1] is not of type bool"),
        (of("text", inputs=[None]), 'None is not {"b64": TEXT}'),
        (of("text", inputs=[["a"], ["b", "c"]]), "['a'] is not"),
        ({"inputs": [[1, 2, 3], [1, 2]]}, "the lists are of different lengths"),
        (of("text", inputs=[{"b64": 1}]), 'is not {"b64": TEXT}'),
        (of("text", inputs=[{"b64": "a"}]), "s: 'a' is not base64"),
        (of("text", inputs=[{"b64": "data:a;base64,aGk="}]), "not base64"),
        (of("text", inputs=["\ud800"]), "Wrong values for s: 'utf-8' codec"),
        (of("resource", inputs=[1]), "[1] is not of type DT_RESOURCE"),
        (of("two", inputs={"x": [1], "y": [1, 2]}), "as many rows each"),
        (of("bfloat16", inputs=ROW), "no numbers of type bfloat16 for y"),
        ({"instances": [[1, 2]]}, "tensor x (1, 2) is not compatible with"),
        (of("text", inputs=[]), "as many rows each, 1 or more"),
    ],
)
def test_wrong_requests(functions, body, message):
    body = json.dumps(body) if isinstance(body, dict) else body
    status, answer = functions.post(PATH, body)
    assert (status, [*answer]) == (400, ["error"])
    assert message in answer["error"] and len(answer["error"]) < 200


@pytest.mark.parametrize(
    "body, answer",
    [
        ('{"instances": [[1, 2, 3]]} ', {"predictions": [6.0]}),
        ({"inputs": ROW, "other": 1}, {"outputs": [6.0]}),
        ({"inputs": {"x": ROW, "other": 1}}, {"outputs": [6.0]}),
        (
            '{"instances": [[1e39, 2, 3], [0, -Infinity, 3]]}',
            {"predictions": [np.inf, -np.inf]},
        ),
        (of("half", inputs=[0.5, 2]), {"outputs": [0.5, 2.0]}),
        (of("two", inputs={"x": [1], "y": [2]}), {"outputs": [3.0]}),
        (of("two", instances=[{"x": 1, "y": 2}]), {"predictions": [3.0]}),
        (of("text", inputs=["ß"]), {"outputs": ["ß"]}),
        # White space, no padding, and the alphabet of URLs.
        (of("text", inputs=[{"b64": "YW\r\nJj\n\n"}]), {"outputs": ["abc"]}),
        (of("text", inputs=[{"b64": " w 6 Q\t"}]), {"outputs": ["ä"]}),
        (of("text", inputs=[{"b64": "Pj4-Pz8_"}]), {"outputs": [">>>???"]}),
    ],
)
def test_right_requests(functions, body, answer):
    assert functions.post(PATH, body) == (200, answer)


@pytest.mark.parametrize(
    "method, path, status, message",
    [
        ("POST", "/x:predict", 404, "Latest(x)"),
        ("POST", "/m/versions/99:predict", 404, "Specific(m, 99)"),
        ("GET", "/x", 404, "Servable not found for request: Latest(x)"),
        ("GET", "/m/versions/99", 404, "Specific(m, 99)"),
        ("GET", "/m/versions/99/metadata", 404, "Specific(m, 99)"),
        ("GET", "/../../other", 404, "Not Found"),
        *(
            (*address.split(), 400, f"Malformed request: {address.split()[0]}")
            for address in (
                "POST /m/labels/stable:predict",
                "GET /m:predict",
                "GET /m/versions/7:predict",
                "POST /m/versions/new:predict",
                "POST /m:regress",
                "POST /m/metadata",
                "PUT /m",
                "GET /",
            )
        ),
    ],
)
def test_wrong_addresses(functions, method, path, status, message):
    """As in TF Serving."""
    body = {"instances": ROW} if method == "POST" else None
    found, headers, data = functions.ask(f"/v1/models{path}", body, method)
    assert (found, message in json.loads(data)["error"]) == (status, True)
    assert headers["content-type"] == "application/json"


def test_the_body_is_looked_at_before_the_model(functions):
    """As in TF Serving."""
    assert functions.post("/v1/models/x:predict", "[]")[0] == 400
    assert functions.post("/v1/models/x:predict", {"instances": 1})[0] == 404


@pytest.mark.parametrize(
    "name, error", [("broken", "MemoryError"), ("uneven", "ValueError")]
)
def test_a_fault_of_the_model_is_an_error_500(functions, caplog, name, error):
    status, answer = functions.post(PATH, of(name, instances=ROW))
    assert (status, answer) == (500, {"error": f"Internal error: {error}"})
    wait_until(lambda: error in caplog.text)
    caplog.clear()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_too_much_sees_why(functions, is_chunked):
    """http.client reads the answer only when it has sent the whole body."""
    size = 2**24  # More than a connection buffers.
    body = iter([b"x" * 2**16] * (size >> 16)) if is_chunked else size * b"x"
    host = functions.removeprefix("http://")
    with contextlib.closing(
        http.client.HTTPConnection(host, timeout=20)
    ) as client:
        client.request("POST", PATH, body)
        answer = client.getresponse()
        error = {"error": "A request may have at most 200,000 bytes"}
        assert (answer.status, json.load(answer)) == (413, error)


def test_compressed_bodies(functions):
    body = b'{"instances": [[1, 2, 3]]}'

    def ask(content, encoding="gzip"):
        return functions.ask(PATH, content, content_encoding=encoding)

    assert ask(gzip.compress(body))[2] == b'{"predictions": [6.0]}'
    for wrong in (ask(body), ask(zlib.compress(body), "br")):
        assert wrong[0] == 400 and b"must be gzip" in wrong[2]
    for wrong in (gzip.compress(body)[:-8], gzip.compress(body) + b"more"):
        status, _, answer = ask(wrong)
        assert status == 400 and b"gzip: the body" in answer
    bomb = gzip.compress(b" " * 2**26)
    assert len(bomb) < 200_000 and ask(bomb)[0] == 413


def test_kept_connections_answer_at_once_and_metrics_say_so(tmp_path):
    """A delayed acknowledgement would take 40 ms, unseen by the server."""
    model = serve_functions(tmp_path, {"serving_default": FUNCTIONS["half"]})
    seen = []
    with run_server({"m": model}) as address:
        host = address.removeprefix("http://")
        with contextlib.closing(
            http.client.HTTPConnection(host, timeout=20)
        ) as client:
            for _ in range(20):
                began = time.perf_counter()
                client.request("POST", PATH, '{"inputs": [1]}')
                assert client.getresponse().read() == b'{"outputs": [1.0]}'
                seen.append(time.perf_counter() - began)
        text = address.ask("/monitoring/prometheus/metrics")[2].decode()
    assert min(seen) < 0.03
    [told] = re.findall(r'latency_sum{model_name="m".*} (\S+)', text)
    assert 0.25 * sum(seen) < float(told) / 1e6 < 2 * sum(seen)
    assert re.search(r'latency_count{model_name="m".*} 20$', text, re.M)


# -------------------------------------------------------- an exported model


def test_serve_check_passes(served, zoo, tags, knows):
    """Images of another size are an error of the client's."""
    with connect(served, model="zoo") as client:
        with pytest.raises(ServingError, match="images") as info:
            client.predict({"images": np.zeros((2, 4, 12, 3), "float32")})
    assert info.value.code == "INVALID_ARGUMENT"
    for folder in (zoo / "zoo/3", tags / "tags/1", knows / "knows/1"):
        export = read_version(folder)
        options = {"model": folder.parent.name, "version": int(folder.name)}
        with connect(served, **options) as client:
            checks = list(check_server(client, export, 1e-5))
        assert not [check for check in checks if check.fault]
        assert len(checks) == 2 + 3 * len(export.signatures)


def test_forms_of_requests_give_the_same(served):
    body = of_files(make_files(1)[0])
    [value] = body.pop("instances")
    _, expected = served.post(ZOO, body | {"instances": [value]})
    [row] = expected["predictions"]
    assert [*row] == ["labels", "probabilities"]
    rows = [{"image_bytes": value}]
    assert served.post(ZOO, body | {"instances": rows}) == (200, expected)
    for columns in ([value], {"image_bytes": [value]}):
        path = "/v1/models/zoo/versions/3:predict"
        status, answer = served.post(path, body | {"inputs": columns})
        assert status == 200
        assert answer["outputs"] == {name: [x] for name, x in row.items()}


def test_status_and_metadata_are_tf_servings(served):
    status, answer = served.get("/v1/models/zoo")
    row = {"version": "3", "state": "AVAILABLE"}
    row["status"] = {"error_code": "OK", "error_message": ""}
    assert (status, answer) == (200, {"model_version_status": [row]})
    assert served.get("/v1/models/zoo/versions/3") == (status, answer)
    status, answer = served.get("/v1/models/zoo/metadata")
    spec = {"name": "zoo", "signature_name": "", "version": "3"}
    assert answer["model_spec"] == spec
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
    assert served.post(ZOO, of_files(make_files(1)[0]))[0] == 200
    served.post(ZOO, {"instances": [1]})
    served.post("/v1/models/made_up:predict", {"instances": [1]})
    status, headers, data = served.ask("/monitoring/prometheus/metrics")
    text = data.decode()
    assert headers["content-type"].startswith("text/plain")
    name = ":tensorflow:serving:request_"
    assert f"# TYPE {name}count counter\n" in text
    assert f'{name}count{{model_name="zoo",status="INVALID_ARGUMENT"}} ' in text
    assert "made_up" not in text and 'model_name="unknown"' in text
    labels = 'model_name="zoo",API="predict",entrypoint="REST"'
    counts = re.findall(rf"{name}latency_bucket{{{labels},le=.*}} (\d+)", text)
    counts = [*map(int, counts)]
    assert len(counts) == 34 and counts == sorted(counts) and counts[-1] > 0
    assert f"{name}latency_count{{{labels}}} {counts[-1]}\n" in text + "\n"


def test_a_file_for_the_signature_of_floats_gets_a_hint(served):
    body, hint = {"instances": [[{"b64": "?"}]]}, '"serve_bytes"'
    assert served.post(ZOO, body)[1]["error"].endswith(hint)
    status, answer = served.post(ZOO, of("serve_bytes", **body))
    assert status == 400 and not answer["error"].endswith(hint)


# --------------------------------------------------------------- image files


def huge_png(width, height):
    """Return a PNG file of almost nothing that says it is large."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def picture(kind, *frames, size=(9, 9)):
    """Return a file of frames of one colour each."""
    first, *others = [Image.new("RGB", size, frame) for frame in frames]
    more = {"save_all": True, "append_images": others} if others else {}
    return encode(first, kind, **more)


def huge_tiff():
    """Return a TIFF file of few bytes and 8400 x 8400 pixels."""
    image = Image.new("1", (8400, 8400))
    content = encode(image, "TIFF", compression="group4")
    assert len(content) < 100_000
    return content


def tiff(mode, dtype, level_count=256, shape=(20, 30), **options):
    """Return a TIFF file of random pixels."""
    random = np.random.default_rng(0)
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (*shape, channels) if channels > 1 else shape
    pixels = random.integers(0, level_count, shape).astype(dtype)
    image = Image.frombytes(mode, shape[1::-1], pixels.tobytes())
    return encode(image, "TIFF", **options)


TIFFS = {
    "RGB": tiff("RGB", "uint8"),
    "compressed": tiff("RGB", "uint8", compression="tiff_deflate"),
    "grey": tiff("L", "uint8"),
    "transparent": tiff("RGBA", "uint8"),
    "CMYK": tiff("CMYK", "uint8"),
    "turned": tiff("RGB", "uint8", tiffinfo={ORIENTATION: 6}),
    "big": tiff("RGB", "uint8", big_tiff=True),
}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"no image", "Unknown image file format"),
        (base64.b64encode(make_files(1)[0]), "Unknown image file format"),
        (make_files(1)[0][:40], "PNG"),
        (make_files(2)[1][:300], "JPEG"),
        (huge_png(8400, 8400), "70,000,000 are allowed"),
        (huge_png(60_000, 60_000), "70,000,000 are allowed"),
        (huge_png(0, 0), ""),
        (picture("WEBP", "red", "blue"), ""),
        (picture("TIFF", "red")[:-9], "a TIFF file"),
        (huge_tiff(), "70,000,000 are allowed"),
        (tiff("F", "float32"), "no known white"),
    ],
)
def test_files_that_are_refused(served, content, message):
    status, answer = served.post(ZOO, of_files(content))
    assert status == 400 and message in answer["error"]
    assert "\n" not in answer["error"]
    assert served.post(ZOO, of_files(make_files(1)[0]))[0] == 200


def test_an_animation_is_its_first_frame(served):
    one, two = (picture("GIF", *x) for x in (["red"], ["red", "blue"]))
    answer = served.post(ZOO, of_files(one))
    assert answer == served.post(ZOO, of_files(two)) and answer[0] == 200


@pytest.mark.parametrize("name", TIFFS)
def test_tiff_files_are_read_as_predict_reads_them(served, zoo, name):
    """The pixels of the decoder of predictions, resized as in Keras."""
    content = TIFFS[name]
    images = served.post(
        ZOO, of_files(content) | {"signature_name": "attention_bytes"}
    )[1]["predictions"][0]["images"]
    pixels = decode_file(content)
    assert pixels.shape[:2] == ((30, 20) if name == "turned" else (20, 30))
    png = tf.io.encode_png(pixels).numpy()
    loaded = tf.saved_model.load(str(zoo / "zoo" / "3"))
    expected = loaded.signatures["attention_bytes"](tf.constant([png]))
    np.testing.assert_array_equal(np.float32(images), expected["images"][0])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", TIFFS)
def test_tiff_files_become_png_files_of_the_same_pixels(name, channels):
    """Also those of a grey model, which its graph makes grey."""
    png = tiff_to_png(TIFFS[name], channels)
    np.testing.assert_array_equal(
        *(decode_file(x, PixelOptions(channels)) for x in (png, TIFFS[name]))
    )


def test_deep_tiff_files_have_the_white_of_the_model():
    numbers = np.random.default_rng(0).integers(0, 4096, (6, 5), "uint16")
    content = encode(numbers, "TIFF")
    found = decode_file(tiff_to_png(content, 1, (0, 4095)))
    want = np.rint(numbers / 4095 * 255)
    np.testing.assert_array_equal(found[..., 0], want)
    # A model without a range takes 65535 for white, as in `read_image`.
    found = decode_file(tiff_to_png(content, 1))
    np.testing.assert_array_equal(found[..., 0], numbers >> 8)


@pytest.fixture(scope="module")
def strict(zoo):
    """Return a server that accepts as much as a million pixels."""
    models = {"zoo": ServedModel("zoo", zoo / "zoo")}
    with run_server(models, "--max_pixels=1000000") as address:
        yield address


@pytest.mark.parametrize(
    "size, kind, count, is_accepted",
    [
        ((60_000, 1), "PNG", 1, False),
        ((1, 60_000), "PNG", 1, False),
        ((30_000, 2), "JPEG", 1, False),
        ((1000, 1), "PNG", 1, True),
        ((1000, 1), "PNG", 2, False),
        ((60, 20), "PNG", 64, True),
        ((1000, 1000), "PNG", 1, True),
        ((1010, 1000), "PNG", 1, False),
    ],
)
def test_long_thin_images_count_as_they_are_resized(
    strict, size, kind, count, is_accepted
):
    """For a model of 8 x 12 pixels, 60,000 x 1 may become 720,000 x 12."""
    files = [picture(kind, "red", size=size)] * count
    status, answer = strict.post(ZOO, of_files(*files))
    assert status == (200 if is_accepted else 400)
    assert is_accepted or "1,000,000 are allowed" in answer["error"]


def test_many_bad_requests_at_a_time(served):
    """Each good one among them is answered rightly."""
    good, bad = make_files(1)[0], make_files(1)[0][:60]
    _, expected = served.post(ZOO, of_files(good))
    calls = [
        functools.partial(served.post, ZOO, of_files(bad if i % 3 else good))
        for i in range(24)
    ]
    for number, (status, answer) in enumerate(in_threads(*calls)):
        if number % 3:
            assert status == 400
            continue
        [row], [want] = answer["predictions"], expected["predictions"]
        assert row["labels"] == want["labels"]
        np.testing.assert_allclose(
            row["probabilities"], want["probabilities"], rtol=1e-5
        )


# --------------------------------------------------------------- other sites


def test_hosts(functions):
    port = functions.rpartition(":")[2]
    hosts = (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "LOCALHOST")
    for host in hosts:
        assert functions.ask("/v1/models/m", host=host)[0] == 200
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "192.168.0.1",
        "",
    ):
        for path in ("/", "/v1/models/m", "/healthz", "/models.json"):
            status, _, data = functions.ask(path, host=host)
            assert (status, b"Unknown host" in data) == (403, True), host


def test_any_address_is_accepted_where_it_is_meant():
    flags = "--host=0.0.0.0", "--allow_host=Mine.example"
    with run_server({}, *flags) as other:
        for host in ("192.168.0.1:8501", "localhost", "mine.example"):
            assert other.ask("/models.json", host=host)[0] == 200
        assert other.ask("/models.json", host="evil.example")[0] == 403


def test_origins(functions):
    port = functions.rpartition(":")[2]
    body = {"instances": ROW}
    for own in ({}, {"origin": functions}):
        status, headers, _ = functions.ask(PATH, body, **own)
        assert status == 200
        assert not [name for name in headers if "allow-origin" in name.lower()]
    for foreign in (
        "http://evil.example",
        "null",
        f"http://localhost:{port}",  # Not the host of the request.
        "http://127.0.0.1:1",
    ):
        for method in ("POST", "OPTIONS"):
            answer = functions.ask(PATH, body, method, origin=foreign)
            assert answer[0] == 403 and b"are refused" in answer[2], foreign


# -------------------------------------------------------------------- batches


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
        self.sizes.append(len(x))
        assert self.gate.wait(20)
        if np.isnan(x).any():
            raise ValueError("nan")
        return {"y": 2 * x}


def note_tasks(monkeypatch):
    """Return a list of the tasks that have come to the queue."""
    arrived, compute = [], _Batcher.compute

    def count_and_compute(batcher, task):
        arrived.append(task)
        return compute(batcher, task)

    monkeypatch.setattr(_Batcher, "compute", count_and_compute)
    return arrived


def rows(*values, **more):
    return {"instances": [[float(value)] for value in values], **more}


def doubled(*values):
    return 200, {"predictions": [[2.0 * value] for value in values]}


@pytest.mark.parametrize(
    "bodies, answers, sizes",
    [
        pytest.param(
            [rows(1), rows(2), rows(3, 4), rows(5), rows(6, 7)],
            [doubled(1), doubled(2), doubled(3, 4), doubled(5), doubled(6, 7)],
            [1, 4, 2],
            id="what waits goes together",
        ),
        pytest.param(
            [
                rows(1),
                rows(2),
                rows(3, signature_name="other"),
                {"instances": [[4.0, 5.0]]},
                rows(6),
            ],
            [
                doubled(1),
                doubled(2),
                doubled(3),
                (200, {"predictions": [[8.0, 10.0]]}),
                doubled(6),
            ],
            [1, 2, 1, 1],
            id="if signature and shapes are the same",
        ),
        pytest.param(
            [rows(1), rows(2), rows("nan"), rows(3)],
            [
                doubled(1),
                doubled(2),
                (500, {"error": "Internal error: ValueError"}),
                doubled(3),
            ],
            [1, 3, 1, 1, 1],
            id="one wrong request does not spoil the others",
        ),
        pytest.param(
            [rows(*range(10))],
            [doubled(*range(10))],
            [4, 4, 2],
            id="a large request is computed in parts",
        ),
    ],
)
def test_waiting_requests_go_together(
    tmp_path, monkeypatch, bodies, answers, sizes
):
    """The others are sent while the first is computed."""
    recorder, vector = Recorder(), spec("DT_FLOAT", -1, -1)
    pair = {"x": vector}, {"y": vector}
    signatures = {
        "serving_default": (*pair, recorder.double),
        "other": (*pair, recorder.double),
    }
    model = serve_functions(tmp_path, signatures)
    arrived = note_tasks(monkeypatch)
    with (
        run_server({"m": model}, "--max_batch_size=4") as address,
        concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads,
    ):
        found = []
        for body in bodies:
            found.append(threads.submit(address.post, PATH, body))
            wait_until(lambda: len(arrived) == len(found) and recorder.sizes)
        recorder.gate.set()
        assert [x.result() for x in found] == answers
    assert recorder.sizes == sizes


STAGES = ["read", "decode", "queue", "model", "answer"]


def read_stages(address):
    """Return {(status, stage): (count, sum in seconds)} of the model `m`."""
    text = address.ask("/monitoring/prometheus/metrics")[2].decode()
    assert text.endswith("\n")
    lines = re.findall(
        r'^keras_vit_request_stage_seconds_(sum|count){model_name="m",'
        r'status="(\w+)",stage="(\w+)"} (\S+)$',
        text,
        re.M,
    )
    found = {kind: {} for kind in ("count", "sum")}
    for kind, status, stage, value in lines:
        found[kind][status, stage] = float(value)
    return {k: (n, found["sum"][k]) for k, n in found["count"].items()}


def test_metrics_of_each_stage_and_status(tmp_path, monkeypatch):
    """The second request waits in the queue while the first is computed."""
    recorder, wait = Recorder(), 0.2
    vector = {"x": spec("DT_FLOAT", -1, -1)}
    kept = (vector, {"y": spec("DT_FLOAT", -1, -1)}, recorder.double)
    signatures = {"serving_default": kept, "broken": FUNCTIONS["broken"]}
    model = serve_functions(tmp_path, signatures)
    arrived = note_tasks(monkeypatch)
    with (
        run_server({"m": model}) as address,
        concurrent.futures.ThreadPoolExecutor(2) as threads,
    ):
        assert read_stages(address) == {}
        began, found = time.perf_counter(), []
        found.append(threads.submit(address.post, PATH, rows(1)))
        wait_until(lambda: recorder.sizes)
        found.append(threads.submit(address.post, PATH, rows(2)))
        wait_until(lambda: len(arrived) == 2)
        time.sleep(wait)
        recorder.gate.set()
        assert [x.result() for x in found] == [doubled(1), doubled(2)]
        took = time.perf_counter() - began
        assert address.post(PATH, "no")[0] == 400
        assert address.post(PATH, of("broken", instances=ROW))[0] == 500
        POOL.clear()  # The server ends the connection after an error 500.
        # The last stage ends after the client has its answer.
        wait_until(lambda: read_stages(address)["OK", "answer"][0] == 2)
        found = read_stages(address)
    assert {key: count for key, (count, _) in found.items()} == {
        **{("OK", stage): 2 for stage in STAGES},
        **{("INVALID_ARGUMENT", stage): 1 for stage in STAGES[:2]},
        **{("INTERNAL", stage): 1 for stage in STAGES[:4]},
    }
    seconds = {stage: found["OK", stage][1] for stage in STAGES}
    assert seconds["queue"] >= wait <= seconds["model"]
    assert sum(seconds.values()) <= 2 * took


# -------------------------------------------------------------- access log


@pytest.fixture
def log(tmp_path, capsys):
    """Return the answers to three requests and the lines about them."""

    def ask(*flags):
        model = serve_functions(tmp_path, FUNCTIONS)
        with run_server({"m": model}, *flags) as address:
            identity = {"x_request_id": 'a b"c'}
            answers = [
                address.ask(PATH, {"instances": ROW}, **identity),
                address.ask("/v1/models/x%0A%20y?z=1"),
                address.ask("/", host="evil.example"),
            ]
        return answers, capsys.readouterr().out.splitlines()

    return ask


def test_the_access_log_as_json(log):
    answers, lines = log("--access_log=json")
    rows = [json.loads(line) for line in lines]
    for row, (status, _, data) in zip(rows, answers, strict=True):
        assert (row["status"], row["bytes"]) == (status, len(data))
        assert row["client"] == "127.0.0.1"
        assert 0 < row["milliseconds"] < 20_000
        began = datetime.datetime.fromisoformat(row["time"])
        age = datetime.datetime.now(datetime.UTC) - began
        assert 0 <= age.total_seconds() < 60
    assert [row["status"] for row in rows] == [200, 404, 403]
    assert [row["method"] for row in rows] == ["POST", "GET", "GET"]
    assert [row["path"] for row in rows] == [PATH, "/v1/models/x%0A%20y", "/"]
    assert [row["model"] for row in rows] == ["m", None, None]
    assert [row["request_id"] for row in rows] == ['a b"c', None, None]


def test_the_access_log_as_text(log):
    answers, lines = log("--access_log=text")
    size = len(answers[0][2])
    assert re.fullmatch(
        rf"\S+ 127\.0\.0\.1 POST {PATH} 200 {size} [\d.]+ m a%20b%22c", lines[0]
    )
    assert len(lines) == 3 and lines[2].endswith(" - -")


def test_there_is_no_access_log_unless_it_is_asked_for(log):
    assert log()[1] == []
