"""The client, against servers that answer and servers that do not."""

import base64
import json
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.serving import (
    Client,
    ServingError,
    Signature,
    TensorSpec,
    UnavailableError,
    VersionStatus,
    connect,
    read_signatures,
)
from tests.ports import free_ports
from tests.serving.made import (
    LEAST,
    NAMES,
    SHAPE,
    SIGNATURES,
    THRESHOLDS,
    make_files,
    make_images,
)
from tests.serving.servers import SERVERS, RestServer


@pytest.fixture
def open_client(server, transport):
    """Return a function like `connect`, without its address."""
    opened = []

    def open_client(**options):
        options = {"model": "tiny", **options}
        opened.append(connect(**{transport: server.address}, **options))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


def expected(models, version=2, signature="serving_default", **inputs):
    """Return the outputs of TensorFlow in this process."""
    call = models.loaded["tiny", version].signatures[signature]
    return {n: x.numpy() for n, x in call(**inputs).items()}


def test_status_and_metadata(open_client):
    client = open_client()
    assert client.status() == [
        VersionStatus(2, "AVAILABLE"),
        VersionStatus(1, "AVAILABLE"),
    ]
    assert open_client(version=1).status() == [VersionStatus(1, "AVAILABLE")]
    found = client.metadata()
    images = TensorSpec("float32", (None, *SHAPE))
    pixels = TensorSpec("uint8", (None, *SHAPE))
    logits = {"logits": TensorSpec("float32", (None, 7))}
    files = {"image_bytes": TensorSpec("string", (None,))}
    classes = {
        "labels": TensorSpec("string", (None, 3)),
        "probabilities": TensorSpec("float32", (None, 3)),
    }
    assert set(found) == set(SIGNATURES)
    assert found["serving_default"] == Signature({"images": images}, logits)
    assert found["serve_uint8"] == Signature({"images": pixels}, logits)
    assert found["serve_bytes"] == Signature(files, classes)


def test_floats_are_answered_to_the_bit(open_client, models):
    images = make_images(3)
    found = open_client().predict({"images": images}, "features")
    want = expected(models, signature="features", images=images)
    assert set(found) == {"features"}
    assert found["features"].dtype == np.float32
    np.testing.assert_array_equal(found["features"], want["features"])


def test_pixels_and_doubles(open_client, models):
    pixels = np.random.default_rng(0).integers(0, 256, (2, *SHAPE), "uint8")
    want = expected(models, signature="serve_uint8", images=pixels)["logits"]
    client = open_client()
    for images in (pixels, pixels.astype("int64"), pixels.tolist()):
        found = client.predict({"images": images}, "serve_uint8")
        np.testing.assert_array_equal(found["logits"], want)
    doubles = make_images(2).astype("float64")
    found = client.predict({"images": doubles})["logits"]
    np.testing.assert_array_equal(
        found, expected(models, images=make_images(2))["logits"]
    )


def test_classifies_files(open_client, models, tmp_path):
    contents = make_files(3)
    paths = [tmp_path / "a.png", str(tmp_path / "b.jpg")]
    for path, content in zip(paths, contents):
        with open(path, "wb") as file:
            file.write(content)
    rows = open_client().classify([*paths, contents[2]])
    want = expected(
        models, signature="serve_bytes", image_bytes=tf.constant(contents)
    )
    assert rows == [
        [(label.decode(), float(p)) for label, p in zip(labels, numbers)]
        for labels, numbers in zip(want["labels"], want["probabilities"])
    ]
    assert open_client().classify([]) == []


def test_several_labels_are_those_at_their_thresholds(open_client, models):
    files = make_files(6)
    rows = open_client(model="tags").classify(files)
    answers = models.loaded["tags", 1].signatures["serve_bytes"](
        image_bytes=tf.constant(files)
    )
    limits = dict(zip(NAMES, THRESHOLDS))
    wanted = [
        [
            (label.decode(), float(p))
            for label, p in zip(labels, numbers)
            if p >= limits[label.decode()]
        ]
        for labels, numbers in zip(
            answers["labels"].numpy(), answers["probabilities"].numpy()
        )
    ]
    assert rows == wanted
    assert {len(row) for row in rows} - {0, 7}


def test_unknown_images_have_no_classes(open_client, models):
    files = make_files(9)
    rows = open_client(model="knows").classify(files)
    with_classes = open_client(model="tiny", version=1).classify(files)
    wanted = [row if row[0][1] >= LEAST else [] for row in with_classes]
    assert rows == wanted and [] in rows and rows != [[]] * 9


def test_bytes_that_end_in_zeros_arrive(open_client, server):
    content = make_files(1)[0] + b"\0\0"
    client = open_client()
    for value in ([content], np.array([content], object)):
        client.predict({"image_bytes": value}, "serve_bytes")
        last = server.requests[-1]
        if isinstance(server, RestServer):
            [value] = json.loads(last[2])["inputs"]["image_bytes"]
            arrived = base64.b64decode(value["b64"])
        else:
            [arrived] = last.inputs["image_bytes"].string_val
        assert arrived == content


def test_outputs_of_every_type(open_client):
    found = open_client(model="odd").predict({"x": [0.0, -3.5]}, "several")
    assert found["text_bytes"].tolist() == [b"\xff\0"] * 2
    assert found["text"].tolist() == ["ß".encode()] * 2
    assert found["is_large"].dtype == bool
    assert found["count"].dtype == np.int64
    assert found["count"].tolist() == [0, -3 * 2**40]
    assert found["infinite"].dtype == np.float32
    np.testing.assert_array_equal(found["infinite"], [np.nan, -np.inf])


def test_bfloat16_is_for_grpc_only(open_client, transport):
    client = open_client(model="odd")
    if transport == "grpc":
        found = client.predict({"x": [1.5]})["half"]
        assert found.dtype.name == "bfloat16" and found.tolist() == [1.5]
        return
    with pytest.raises(ServingError, match="type: bfloat16"):
        client.predict({"x": [1.5]})


def test_one_version_or_label_is_asked(open_client, models):
    images = make_images(2)
    for version, options in (
        (1, {"version": 1}),
        (2, {"version": 2}),
        (1, {"label": "stable"}),
        (2, {"label": "canary"}),
        (2, {}),
    ):
        found = open_client(**options).predict({"images": images})["logits"]
        want = expected(models, version, images=images)["logits"]
        np.testing.assert_array_equal(found, want)


def test_long_inputs_are_cut_and_put_together_in_order(
    open_client, server, models
):
    client = open_client(batch_size=2, concurrency=3)
    client.metadata()
    # The first takes longest, so that the others overtake it.
    server.faults.plan(0.3, 0.05, 0.15, 0.0, 0.1)
    images = make_images(13)
    found = client.predict({"images": images})["logits"]
    assert server.faults.num_requests == 7
    assert 2 <= server.faults.most_at_once <= 3
    np.testing.assert_allclose(
        found, expected(models, images=images)["logits"], atol=1e-6
    )
    files = make_files(5)
    rows = client.classify(files)
    alone = [client.classify([file])[0] for file in files]
    assert rows == [
        [(label, pytest.approx(number, abs=1e-6)) for label, number in row]
        for row in alone
    ]


def test_connections_are_kept(models):
    with RestServer(models) as server:
        with connect(server.address, model="tiny") as client:
            for _ in range(4):
                client.predict({"images": make_images(1)})
        assert len(server.connections) == 1


# ------------------------------------------------------------ what is sent


def test_body_of_a_request_over_rest(models):
    with RestServer(models) as server:
        with connect(server.address, model="tiny", label="stable") as client:
            client.predict({"images": np.zeros((1, *SHAPE))})
            client.predict({"image_bytes": make_files(1)}, "serve_bytes")
    (get, path, _), (post, first, zeros), (_, _, files) = server.requests
    root = "/v1/models/tiny/labels/stable"
    assert (get, path) == ("GET", f"{root}/metadata")
    assert (post, first) == ("POST", f"{root}:predict")
    row = "[" + ",".join(["[0.0,0.0,0.0]"] * 12) + "]"
    image = "[" + ",".join([row] * 8) + "]"
    assert zeros.decode() == (
        '{"signature_name":"serving_default","inputs":{"images":[' + image + "]"
        "}}"
    )
    start = b'{"signature_name":"serve_bytes","inputs":{"image_bytes":[{"b64":'
    assert files.startswith(start + b'"iVBORw0KGgo')


def test_arrays_go_as_their_bytes_over_grpc(models):
    images = make_images(2)
    with SERVERS["grpc"](models) as server:
        with connect(grpc=server.address, model="tiny", version=1) as client:
            client.predict({"images": images})
            client.predict(
                {"images": np.ones((1, *SHAPE), "uint8")}, "serve_uint8"
            )
    floats, pixels = server.requests
    assert floats.model_spec.version.value == 1
    assert floats.inputs["images"].tensor_content == images.tobytes()
    assert not floats.inputs["images"].float_val
    assert pixels.inputs["images"].tensor_content == b"\1" * 288


def test_messages_of_any_size_over_grpc(models):
    count = 300_000  # Answered by 6 MB, more than gRPC takes by itself.
    with SERVERS["grpc"](models) as server:
        options = {"grpc": server.address, "model": "odd"}
        with connect(**options, batch_size=count) as client:
            found = client.predict({"x": np.zeros(count)}, "several")
    assert found["count"].shape == (count,)


# --------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("fault", ["busy", "close", 1.0])
def test_what_may_pass_is_tried_again(
    open_client, server, transport, models, fault
):
    client = open_client(retries=2, timeout=0.5 if fault == 1.0 else 5)
    images = make_images(2)
    client.predict({"images": images})  # Compiled; connected.
    before = server.faults.num_requests
    server.faults.plan(fault, fault)
    if (transport, fault) == ("grpc", 1.0):
        # The deadline of gRPC is that of all attempts.
        with pytest.raises(UnavailableError, match="DEADLINE"):
            client.predict({"images": images})
        return
    found = client.predict({"images": images})["logits"]
    np.testing.assert_array_equal(
        found, expected(models, images=images)["logits"]
    )
    assert server.faults.num_requests == before + 3


def test_attempts_come_to_an_end(open_client, server):
    client = open_client(retries=2)
    server.faults.plan(*["busy"] * 3)
    with pytest.raises(UnavailableError) as caught:
        client.predict({"images": make_images(1)})
    assert "the queue is full" in str(caught.value)
    assert "(3 attempts)" in str(caught.value)
    assert caught.value.code == "UNAVAILABLE"
    assert server.faults.num_requests == 3
    client.predict({"images": make_images(1)})


def test_a_proxy_without_its_server(models):
    with RestServer(models) as server:
        server.faults.plan("proxy")
        with connect(server.address, model="tiny", retries=0) as client:
            with pytest.raises(UnavailableError, match="Bad Gateway"):
                client.predict({"images": make_images(1)})


def test_no_answer_in_time(open_client, server):
    client = open_client(retries=0, timeout=1.0)
    client.metadata()
    server.faults.plan(2.0)
    with pytest.raises(UnavailableError) as caught:
        client.predict({"images": make_images(1)})
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_bad_requests_are_not_tried_again(open_client, server):
    client = open_client()
    for wrong in (make_images(4)[:, :3], make_images(1)[:, :, :, :2]):
        before = server.faults.num_requests
        with pytest.raises(ServingError, match="[Ss]hape") as caught:
            client.predict({"images": wrong})
        assert not isinstance(caught.value, UnavailableError)
        assert caught.value.code == "INVALID_ARGUMENT"
        assert server.faults.num_requests == before + 1
    with pytest.raises(ServingError, match="Unknown image|decode"):
        client.classify([make_files(1)[0], b"no image"])
    with pytest.raises(ServingError, match="Unknown image|decode"):
        client.predict({"image_bytes": ["no image"]}, "serve_bytes")
    # One part that is refused is the end of all.
    with pytest.raises(ServingError):
        open_client(batch_size=1).classify([*make_files(3), b"no image"])
    assert client.classify(make_files(1))


@pytest.mark.parametrize("fault", ["garbage", "fewer"])
def test_answers_that_make_no_sense(open_client, server, fault):
    client = open_client()
    server.faults.plan(fault)
    with pytest.raises(ServingError) as caught:
        client.predict({"images": make_images(2)})
    assert not isinstance(caught.value, UnavailableError)
    assert caught.value.code == ""
    assert server.faults.num_requests == 1


@pytest.mark.parametrize(
    "options, code, words",
    [
        ({"model": "none"}, "NOT_FOUND", "not f.*none"),
        ({"version": 9}, "NOT_FOUND", "not f.*9"),
        ({"label": "old"}, "INVALID_ARGUMENT", "version label: old"),
    ],
)
def test_the_words_of_the_server(open_client, options, code, words):
    client = open_client(**options)
    for ask in (client.status, client.metadata):
        with pytest.raises(ServingError, match=words) as caught:
            ask()
        assert caught.value.code == code
        assert not isinstance(caught.value, UnavailableError)


def connect_to_port(transport, port, **options):
    scheme = {"url": "http://", "grpc": ""}[transport]
    address = f"{scheme}127.0.0.1:{port}"
    return connect(**{transport: address}, model="tiny", **options)


def test_no_server(transport):
    with connect_to_port(transport, free_ports(1)[0], retries=0) as client:
        with pytest.raises(UnavailableError, match="onnection refused"):
            client.status()


def test_a_server_that_comes_later(transport, models):
    port = free_ports(1)[0]
    started = []
    timer = threading.Timer(
        0.5, lambda: started.append(SERVERS[transport](models, port))
    )
    timer.start()
    with connect_to_port(transport, port, retries=4) as client:
        assert client.predict({"images": make_images(1)})
    timer.join()
    started[0].__exit__()


# ------------------------------------------------------ what is not even sent


@pytest.mark.parametrize(
    "inputs, signature, words",
    [
        ({"images": make_images(1)}, "serve", "`signature` must be one of"),
        ({"image": make_images(1)}, "features", "`inputs` must be one of"),
        ({"images": np.zeros((0, *SHAPE))}, "features", "`inputs` must be"),
        (
            {"images": np.zeros((1, *SHAPE), "uint8")},
            "serving_default",
            "`images` must be float32.*Received: uint8, such as 0",
        ),
        ({"images": [256]}, "serve_uint8", "uint8.*int64, such as 256"),
        ({"images": [1.0]}, "serve_uint8", "uint8.*Received: float64"),
        ({"image_bytes": [1]}, "serve_bytes", "bytes or text. Received: int"),
    ],
)
def test_inputs_that_do_not_fit(open_client, server, inputs, signature, words):
    with pytest.raises(ValueError, match=words):
        open_client().predict(inputs, signature)
    assert server.faults.num_requests == 0


def test_a_signature_of_any_number_of_axes():
    info = {"dtype": "DT_RESOURCE", "tensor_shape": {"unknown_rank": True}}
    signatures = {"s": {"inputs": {"x": info}}, "__init_op": {}}
    spec = TensorSpec("DT_RESOURCE", None)
    assert read_signatures(signatures) == {"s": Signature({"x": spec}, {})}


def test_inputs_of_different_lengths():
    class Transport:
        def metadata(self):
            spec = TensorSpec("float64", None)
            return {"s": Signature({"a": spec, "b": spec}, {})}

    client = Client(Transport(), 8, 1)
    for lengths in ((3, 2), (3, 0), (0, 0)):
        inputs = dict(zip("ab", map(np.zeros, lengths)))
        with pytest.raises(ValueError, match="`inputs` must"):
            client.predict(inputs, "s")


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "`url`"),
        ({"url": "http://a", "grpc": "a:1"}, "`url`"),
        ({"url": "localhost:8501"}, "`url` must be http://"),
        ({"grpc": "http://localhost:8500"}, "`grpc` must be HOST:PORT"),
        ({"grpc": "localhost"}, "`grpc`"),
        ({"url": "http://a", "version": 1, "label": "b"}, "`label`"),
        ({"url": "http://a", "timeout": 0}, "`timeout` must be positive"),
        ({"url": "http://a", "retries": -1}, "`retries` must be"),
        ({"grpc": "a:1", "retries": 5}, "`retries` must be from 0 to 4"),
        ({"url": "http://a", "batch_size": 0}, "`batch_size` must be 1"),
        ({"url": "http://a", "concurrency": 0}, "`concurrency` must be 1"),
    ],
)
def test_arguments_that_do_not_fit(options, words):
    with pytest.raises(ValueError, match=words):
        connect(model="tiny", **options)


@pytest.mark.parametrize(
    "options, module, package",
    [
        ({"url": "http://a"}, "urllib3", "urllib3"),
        ({"grpc": "a:1"}, "tensorflow_serving.apis", "tensorflow-serving-api"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, options, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        connect(model="tiny", **options)
    assert str(caught.value) == (
        f"This client of TF Serving needs {package}: pip install {package}"
    )
