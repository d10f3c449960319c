"""Faults of clients, and attacks by pages of other sites."""

import asyncio
import base64
import contextlib
import http.client
import io
import json
import socket
import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image

from keras_vit.serving.server import draining
from keras_vit.serving.server.draining import Draining
from keras_vit.serving.server.limits import Limits
from tests.serving.made import make_files
from tests.serving.server.running import (
    run_server,
    serve_functions,
    spec,
    wait_until,
)

PATH = "/v1/models/m:predict"


def send_file(server, content, model="zoo"):
    text = base64.b64encode(content).decode()
    return server.post(
        f"/v1/models/{model}:predict",
        {"signature_name": "serve_bytes", "instances": [{"b64": text}]},
    )


def test_a_file_for_the_signature_of_floats_gets_a_hint(served):
    hint = '. Image files need "signature_name": "serve_bytes"'
    for name, want in (("serving_default", True), ("serve_bytes", False)):
        body = {"signature_name": name, "instances": [[{"b64": "?"}]]}
        status, answer = served.post("/v1/models/zoo:predict", body)
        assert (status, answer["error"].endswith(hint)) == (400, want)
    status, answer = served.post("/v1/models/zoo:predict", {"instances": ["a"]})
    assert (status, hint in answer["error"]) == (400, False)


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


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "Unknown image file format"),
        (b"no image", "Unknown image file format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "Unknown image file"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "Unknown image file"),
        (make_files(1)[0][:40], "PNG"),
        (make_files(2)[1][:300], "JPEG"),
        (huge_png(8400, 8400), "70,000,000 are allowed"),
        (huge_png(60_000, 60_000), "70,000,000 are allowed"),
        (huge_png(0, 0), ""),
    ],
)
def test_files_that_are_refused(served, content, message):
    status, answer = send_file(served, content)
    assert status == 400 and message in answer["error"]
    assert "\n" not in answer["error"]
    assert send_file(served, make_files(1)[0])[0] == 200


def test_an_animation_is_its_first_frame(served):
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    one, two = io.BytesIO(), io.BytesIO()
    frames[0].save(one, "GIF")
    frames[0].save(two, "GIF", save_all=True, append_images=frames[1:])
    assert send_file(served, one.getvalue()) == send_file(
        served, two.getvalue()
    )


def test_an_animated_webp_is_refused(served):
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    one, two = io.BytesIO(), io.BytesIO()
    frames[0].save(one, "WEBP")
    frames[0].save(two, "WEBP", save_all=True, append_images=frames[1:])
    assert send_file(served, one.getvalue())[0] == 200
    status, answer = send_file(served, two.getvalue())
    assert status == 400
    assert answer["error"].startswith("An animated WebP file cannot")


def test_base64_without_its_object(served):
    """The commonest mistake of users."""
    text = base64.b64encode(make_files(1)[0]).decode()
    body = {"signature_name": "serve_bytes", "instances": [text]}
    status, answer = served.post("/v1/models/zoo:predict", body)
    assert status == 400 and "Unknown image file format" in answer["error"]


@pytest.fixture(scope="module")
def gate():
    """An event that all inferences wait for, except those of zeros."""
    return threading.Event()


@pytest.fixture(scope="module")
def server(tmp_path_factory, gate):
    tensor = spec("DT_FLOAT", -1)

    def wait(x):
        assert not x.any() or gate.wait(20)
        return {"y": x}

    def fail(x):
        raise MemoryError

    signatures = {
        "serving_default": ({"x": tensor}, {"y": tensor}, wait),
        "broken": ({"x": tensor}, {"y": tensor}, fail),
    }
    model = serve_functions(tmp_path_factory.mktemp("m"), signatures)
    limits = Limits(
        max_waiting=3, timeout=2, receive_timeout=0.3, max_body_bytes=1000
    )
    with run_server({"m": model}, limits=limits) as address:
        yield address


def test_hosts(server):
    port = server.rpartition(":")[2]
    for host in (
        f"localhost:{port}",
        "127.0.0.1",
        f"[::1]:{port}",
        "LOCALHOST",
    ):
        assert server.ask("/v1/models/m", host=host)[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "192.168.0.1",
        "localhost.",
        "",
    ):
        for path in ("/", "/v1/models/m", "/healthz", "/models.json"):
            status, _, data = server.ask(path, host=host)
            assert (status, b"Unknown host" in data) == (403, True), host


def test_origins(server):
    port = server.rpartition(":")[2]
    body = {"instances": [0.0]}
    for own in ({}, {"origin": server, "sec_fetch_site": "same-origin"}):
        status, headers, _ = server.ask(PATH, body, **own)
        assert status == 200
        assert not [name for name in headers if "allow-origin" in name.lower()]
    for foreign in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://localhost:{port}"},  # Not the host of the request.
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://evil.example", "method": "OPTIONS"},
    ):
        status, _, data = server.ask(PATH, body, **foreign)
        assert (status, b"are refused" in data) == (403, True), foreign
    # A link to the page is followed.
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert server.ask("/", **link)[0] == 200
    assert server.ask(PATH, body, **link)[0] == 403
    assert server.ask(PATH, method="OPTIONS", origin=server)[0] == 400


def test_another_address_is_accepted_where_it_is_meant(server, tmp_path):
    with run_server({}, any_address=True) as other:
        assert other.ask("/models.json", host="192.168.0.1:8501")[0] == 200
        assert other.ask("/models.json", host="evil.example")[0] == 403


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_too_much_sees_why(server, is_chunked):
    """http.client reads the answer only when it has sent the whole body."""
    size = 2**24  # More than a connection buffers.
    with contextlib.closing(
        http.client.HTTPConnection(server.removeprefix("http://"), timeout=20)
    ) as client:
        body = (
            iter([b"x" * 2**16] * (size >> 16)) if is_chunked else size * b"x"
        )
        client.request("POST", PATH, body, {"Host": "localhost"})
        answer = client.getresponse()
        assert answer.status == 413
        assert json.load(answer) == {
            "error": "A request may have at most 1,000 bytes"
        }


def drain(parts, **limits):
    """Return the parts that are received and sent for a refused body."""
    received, sent = [], []

    async def refuse(scope, receive, send):
        await receive()
        await send({"type": "http.response.start"})
        await send({"type": "http.response.body", "body": b"no"})

    async def receive():
        if len(received) == parts:
            await asyncio.sleep(60)
        received.append(len(sent))
        return {"body": b"x" * 100, "more_body": True}

    async def send(message):
        sent.append((message.get("body"), message.get("more_body", False)))

    scope = {"type": "http", "headers": [(b"content-length", b"999999")]}
    app = Draining(refuse, Limits(**limits))
    asyncio.run(app(scope, receive, send))
    return received, sent[1:]


def test_what_is_dropped_is_bounded_and_follows_the_answer(monkeypatch):
    monkeypatch.setattr(draining, "MOST_DROPPED_BYTES", 800)
    whole = [(b"no", True), (b"", False)]
    # By its size: one part is received before the answer.
    assert drain(None) == ([0] + 8 * [2], whole)
    # By the time to receive a request.
    assert drain(3, receive_timeout=0.05) == ([0, 2, 2], whole)


def test_large_and_slow_bodies(server):
    status, headers, data = server.ask(PATH, b"x" * 1001)
    assert status == 413 and b"at most 1,000 bytes" in data
    assert headers["connection"] == "close"
    host, port = server.removeprefix("http://").split(":")
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
    for begin, answer in (
        (head + b"Content-Length: 9\r\n\r\n{", b"HTTP/1.1 408 "),
        # Endless, in small pieces.
        (
            head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
            b"HTTP/1.1 408 ",
        ),
        (head, b""),
    ):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(begin)
            assert connection.recv(99).startswith(answer)
    # The second head on a connection is never finished.
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while b'{"status": "ok"}' not in answer:
            answer += connection.recv(9999)
        connection.sendall(head)
        assert connection.recv(99) == b""
    # Not even a head; one that is never finished counts from its beginning.
    with socket.create_connection((host, int(port)), 10) as connection:
        assert connection.recv(1) == b""


def test_a_slow_inference_and_a_full_queue(server, gate):
    statuses = []

    def ask():
        status, headers, data = server.ask(PATH, {"instances": [1.0]})
        statuses.append((status, headers.get("retry-after"), data))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gate.set()
    late = [data for status, _, data in statuses if status == 504]
    full = [row for row in statuses if row[0] == 503]
    assert len(late) == 3 and len(full) == 2
    assert b"No answer within 2 s" in late[0]
    assert {retry for _, retry, _ in full} == {"1"}
    assert b"queue of requests is full" in full[0][2]
    # What nobody waits for any more is not computed.
    wait_until(lambda: server.ask(PATH, {"instances": [0.0]})[0] == 200, 2)


def test_a_fault_of_the_model_is_an_error_500(server, caplog):
    body = {"signature_name": "broken", "instances": [1]}
    status, answer = server.post(PATH, body)
    assert (status, answer) == (500, {"error": "Internal error: MemoryError"})
    assert "MemoryError" in caplog.text
    caplog.clear()


def test_many_bad_requests_at_a_time(served):
    """Each good one among them is answered rightly."""
    good, bad = make_files(1)[0], make_files(1)[0][:60]
    expected = send_file(served, good)
    answers = {}

    def ask(number):
        answers[number] = send_file(served, bad if number % 3 else good)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in answers.items():
        if number % 3:
            assert answer[0] == 400
        else:
            [row] = answer[1]["predictions"]
            [want] = expected[1]["predictions"]
            assert row["labels"] == want["labels"]
            np.testing.assert_allclose(
                row["probabilities"], want["probabilities"], rtol=1e-5
            )
