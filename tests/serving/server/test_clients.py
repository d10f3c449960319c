"""What clients of other libraries send, and how long they wait."""

import base64
import contextlib
import gzip
import http.client
import io
import json
import re
import time

import pytest
from PIL import Image

from keras_vit.serving.server.limits import Limits
from tests.serving.made import make_files
from tests.serving.server.running import (
    poll_model,
    run_server,
    serve_functions,
    spec,
)

PATH = "/v1/models/zoo:predict"


def body_of(*texts):
    rows = [{"b64": text} for text in texts]
    return {"signature_name": "serve_bytes", "instances": rows}


def encode(image, kind="PNG"):
    stream = io.BytesIO()
    image.save(stream, kind)
    return base64.b64encode(stream.getvalue()).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.rstrip("="),
        lambda text: re.sub("(.{60})", r"\1\n", text) + "\n",
        lambda text: re.sub("(.{60})", r"\1\r\n", text),
        lambda text: f" {text[:9]}\t {text[9:]} ".replace("=", " ="),
        lambda text: text.replace("+", "-").replace("/", "_"),
    ],
)
def test_base64_as_tf_serving_reads_it(served, change):
    text = base64.b64encode(make_files(1)[0]).decode()
    assert "+" in text and "/" in text and text.endswith("=")
    expected = served.post(PATH, body_of(text))
    assert expected[0] == 200
    assert served.post(PATH, body_of(change(text))) == expected


@pytest.mark.parametrize(
    "text", ["data:image/png;base64,aGk=", "aGk?", "a", "aGk==="]
)
def test_what_is_not_base64(served, text):
    status, answer = served.post(PATH, body_of(text))
    assert status == 400 and "image_bytes" in answer["error"]


def test_compressed_bodies(served):
    text = base64.b64encode(make_files(1)[0]).decode()
    body = json.dumps(body_of(text)).encode()
    packed = gzip.compress(body)
    status, _, data = served.ask(PATH, packed, content_encoding="gzip")
    assert (status, data) == (200, served.ask(PATH, body)[2])
    for broken in (body, packed[:-9]):
        status, _, data = served.ask(PATH, broken, content_encoding="gzip")
        assert status == 400 and b"gzip" in data
    status, headers, data = served.ask(PATH, body, content_encoding="br")
    assert status == 415 and b"gzip" in data and b"'br'" in data
    bomb = gzip.compress(b" " * 2**26)
    assert len(bomb) < 2**17
    assert served.ask(PATH, bomb, content_encoding="gzip")[0] == 413


@pytest.fixture(scope="module")
def small(zoo):
    """Return a server that accepts as much as 500,000 pixels."""
    with run_server(
        {"zoo": poll_model("zoo", zoo / "zoo")},
        limits=Limits(max_pixels=500_000),
    ) as address:
        yield address


@pytest.mark.parametrize(
    "size, kind, count, is_accepted",
    [
        ((60_000, 1), "PNG", 1, False),
        ((1, 60_000), "PNG", 1, False),
        ((60_000, 1), "BMP", 1, False),
        ((1, 60_000), "GIF", 1, False),
        ((30_000, 2), "JPEG", 1, False),
        ((16_000, 1), "WEBP", 1, False),
        ((1000, 1), "PNG", 1, True),
        ((1000, 1), "PNG", 16, False),
        ((60, 20), "PNG", 64, True),
        ((700, 700), "PNG", 1, True),
    ],
)
def test_long_thin_images_count_as_they_are_resized(
    small, size, kind, count, is_accepted
):
    """Of 8 x 12 pixels, 60,000 x 1 becomes 480,000 x 8 floats."""
    text = encode(Image.new("RGB", size), kind)
    status, answer = small.post(PATH, body_of(*[text] * count))
    assert status == (200 if is_accepted else 400)
    if not is_accepted:
        assert "500,000" in answer["error"]


def test_kept_connections_answer_at_once_and_metrics_say_so(tmp_path):
    """A delayed acknowledgement would take 40 ms, unseen by the server."""
    tensor = spec("DT_FLOAT", -1)
    signature = {"x": tensor}, {"y": tensor}, lambda x: {"y": x}
    model = serve_functions(tmp_path, {"serving_default": signature})
    seen = []
    with run_server({"m": model}) as address:
        name, port = address.removeprefix("http://").split(":")
        with contextlib.closing(
            http.client.HTTPConnection(name, int(port), timeout=20)
        ) as client:
            for _ in range(20):
                began = time.perf_counter()
                client.request(
                    "POST", "/v1/models/m:predict", '{"inputs": [1]}'
                )
                assert client.getresponse().read() == b'{"outputs": [1.0]}'
                seen.append(time.perf_counter() - began)
        text = address.ask("/monitoring/prometheus/metrics")[2].decode()
    assert min(seen) < 0.03
    [told] = re.findall(r'_sum{model_name="m".*} (\S+)', text)
    assert 0.25 * sum(seen) < float(told) / 1e6 < sum(seen)
    assert re.search(r'_count{model_name="m".*} 20$', text, re.M)
