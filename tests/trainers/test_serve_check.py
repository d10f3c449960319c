"""The check of a server, and its command."""

import dataclasses
import json
import socket

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.serving import UnavailableError, VersionStatus, connect
from keras_vit.serving.tf_serving import read_version
from tests import commands
from tests.serving.made import SIGNATURES
from tests.serving.servers import (
    SERVERS,
    GrpcServer,
    Models,
    Refusal,
    RestServer,
)
from trainers.server_check import (
    check_server,
    measure_response_times,
    mirror,
    spoil,
)


@pytest.fixture(scope="module")
def models(zoo):
    return Models(zoo)


def run(environment, export, *more):
    words = ["-m", "trainers.serve_check", f"--export={export}", *more]
    return commands.run([*words, "--requests=8"], environment)


def test_command_says_what_differs(
    models, other_zoo, subprocess_environment, tmp_path
):
    report = tmp_path / "report.json"
    with GrpcServer(models) as server:
        result = run(
            subprocess_environment,
            other_zoo / "zoo" / "3",
            f"--grpc={server.address}",
            f"--json={report}",
        )
    assert result.returncode == 1
    assert "the largest difference is" in result.stdout
    assert "Traceback" not in result.stderr
    found = json.loads(report.read_text())
    assert not found["passed"] and found["version"] == 3
    assert len(found["checks"]) == 2 + 3 * len(SIGNATURES)
    assert len(found["latencies"]) < len(SIGNATURES)  # Of what is right.


def test_a_tolerance_must_be_finite(zoo, subprocess_environment):
    result = run(
        subprocess_environment,
        zoo / "zoo" / "3",
        "--url=http://127.0.0.1:1",
        "--tolerance=nan",
    )
    assert result.returncode == 1
    assert "`tolerance` must be finite" in result.stderr.splitlines()[-1]


def test_command_without_a_server(zoo, subprocess_environment):
    with socket.socket() as taken:  # By nobody who listens.
        taken.bind(("127.0.0.1", 0))
        result = run(
            subprocess_environment,
            zoo / "zoo" / "3",
            f"--url=http://127.0.0.1:{taken.getsockname()[1]}",
        )
    assert result.returncode == 69
    assert "Retry" not in result.stderr  # The warnings of urllib3.
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: No response from http://127.0.0.1:")
    assert "onnection refused" in line and not result.stdout


@pytest.fixture(scope="module")
def export(zoo):
    return read_version(zoo / "zoo" / "3")


class Changed:
    """Models whose answers are changed on their way.

    Args:
        models: The models.
        change: Takes (signature, inputs, answer) with `answer()` what they
            would say, and returns what is said.
    """

    def __init__(self, models, change):
        self._models = models
        self._change = change

    def __getattr__(self, name):
        return getattr(self._models, name)

    def answer(self, key, signature, inputs):
        return self._change(
            signature,
            inputs,
            lambda inputs=inputs: self._models.answer(key, signature, inputs),
        )


def find_faults(models, export, kind="url", **options):
    """Return (what, signature) of each check that fails."""
    with SERVERS[kind](models) as server:
        options = {"model": "zoo", "version": 3, "batch_size": 99, **options}
        with connect(**{kind: server.address}, **options) as client:
            checks = list(check_server(client, export, 1e-4))
    return {(c.what, c.signature): c.fault for c in checks if c.fault}


@pytest.mark.parametrize("kind", SERVERS)
def test_nothing_is_wrong_with_a_right_server(models, export, kind):
    with SERVERS[kind](models) as server:
        options = {"model": "zoo", "version": 3, "batch_size": 99}
        with connect(**{kind: server.address}, **options) as client:
            checks = list(check_server(client, export, 1e-5))
    assert not [check for check in checks if check.fault]
    seen = [(check.what, check.signature) for check in checks]
    assert seen == [("status", ""), ("metadata", "")] + [
        (what, name)
        for name in SIGNATURES
        for what in ("answer", "batch", "refusal")
    ]
    assert all(check.difference <= 1e-5 for check in checks[2:])


def test_latency_counts_what_the_server_takes(models, export):
    with RestServer(models) as server:
        with connect(server.address, model="zoo") as client:
            client.metadata()
            server.faults.plan(*[0.05] * 18, 0.3, 0.3)
            latency = measure_response_times(client, export.records[0], 20, 2)
        assert server.faults.most_at_once == 2
    assert 50 <= latency.p50 <= latency.p90 < latency.p99 >= 300
    # 1.5 s of work for two threads, and what a busy machine adds.
    assert 1 < latency.requests_per_second <= 20 / 0.75


def test_another_model(other_zoo, export):
    faults = find_faults(Models(other_zoo), export)
    assert set(faults) == {
        (what, name) for name in SIGNATURES for what in ("answer", "refusal")
    }
    assert "features: the largest diff" in faults["answer", "features"]
    assert "probabilities: " in faults["answer", "serve_bytes"]


def change_where(name, what):
    def change(signature, inputs, answer):
        outputs = answer()
        return what(outputs) if signature == name else outputs

    return change


def add(number):
    return change_where(
        "features", lambda x: {"features": x["features"] + number}
    )


def change_batch(name, what):
    return change_where(name, lambda x: {n: what(a) for n, a in x.items()})


def reshape(signature, inputs, answer):
    """Take images of any size."""
    if "images" in inputs:
        images = np.array(inputs["images"])
        inputs = {"images": images.reshape(-1, 8, 12, 3)}
    return answer(inputs)


def black(signature, inputs, answer):
    """Take any file."""
    try:
        return answer()
    except Exception:
        if signature != "serve_bytes":
            raise
        file = tf.io.encode_png(np.zeros((8, 12, 3), "uint8")).numpy()
        return answer({"image_bytes": np.array([file], object)})


def swap_labels(outputs):
    return outputs | {"labels": outputs["labels"][:, [1, 0, 2]]}


ANSWER, BATCH, REFUSAL = (
    (what, "features") for what in ("answer", "batch", "refusal")
)
OF_IMAGES = [n for n in SIGNATURES if not n.endswith("_bytes")]


@pytest.mark.parametrize(
    "change, wanted, words",
    [
        (add(2e-4), {ANSWER, REFUSAL}, "features: the largest diff"),
        (add(np.nan), {ANSWER, BATCH, REFUSAL}, "features: the export gives"),
        # Answers of a batch that are not those of each image alone.
        *(
            (change_batch(name, what), {("batch", name)}, "")
            for name, what in (
                ("serving_default", lambda x: x[::-1]),
                ("serve_bytes", lambda x: np.roll(x, 1, 0)),
                ("features", lambda x: (x + x.mean(0)) / 2),
            )
        ),
        (reshape, {("refusal", n) for n in OF_IMAGES}, "shape (2, 4, 12, 3)"),
        (black, {("refusal", "serve_bytes")}, ""),
        (
            change_where("serve_bytes", swap_labels),
            {("answer", "serve_bytes"), ("refusal", "serve_bytes")},
            "",
        ),
    ],
)
def test_answers_that_are_changed(models, export, change, wanted, words):
    faults = find_faults(Changed(models, change), export)
    assert set(faults) == wanted
    assert words in next(iter(faults.values()))


def test_a_server_that_refuses_all_after_a_wrong_image(models, export):
    broken = []

    def stay_broken(signature, inputs, answer):
        if broken:
            raise Refusal(400, "still broken")
        try:
            return answer()
        except Refusal:
            broken.append(signature)
            raise

    faults = find_faults(Changed(models, stay_broken), export)
    assert faults["refusal", "attention"].endswith("still broken")
    assert ("answer", "attention") not in faults


def test_other_signatures(other_zoo, zoo, models):
    export = read_version(zoo / "zoo" / "3")
    more = export.signatures | {"more": export.signatures["features"]}
    wanted = dataclasses.replace(export, signatures=more)
    assert find_faults(models, wanted) == {
        ("metadata", ""): "not as in the export: more"
    }
    fewer = dataclasses.replace(export, records=export.records[1:])
    name = export.records[0].signature
    assert set(find_faults(models, fewer)) == {("answer", name)}


@pytest.mark.parametrize(
    "state, words",
    [
        ([VersionStatus(3, "END", "no memory")], "version 3 is END no memory"),
        ([VersionStatus(2, "AVAILABLE")], "no version 3"),
    ],
)
def test_a_version_that_is_not_there(export, state, words):
    class Client:
        def status(self):
            return state

    [check] = check_server(Client(), export, 1e-4)
    assert check.what == "status" and words in check.fault


@pytest.mark.parametrize("kind", SERVERS)
def test_another_name_or_version(models, export, kind):
    for options in ({"model": "farm"}, {"version": 4}):
        [(what, fault)] = find_faults(models, export, kind, **options).items()
        assert what == ("status", "") and "Could not find" in fault


def test_a_server_that_goes_away(models, export):
    with RestServer(models) as server:
        with connect(
            server.address, model="zoo", version=3, retries=0, batch_size=99
        ) as client:
            checks = check_server(client, export, 1e-4)
            next(checks)
            next(checks)
            server.faults.plan("close")
            with pytest.raises(UnavailableError):
                next(checks)


@pytest.mark.parametrize(
    "shape, wrong",
    [
        ((1, 8, 12, 3), (2, 4, 12, 3)),
        ((1, 7, 12, 3), (2, 7, 6, 3)),
        ((1, 7, 5, 3), (1, 8, 5, 3)),
    ],
)
def test_wrong_sizes(shape, wrong):
    assert spoil(np.zeros(shape, "uint8")).shape == wrong


@pytest.mark.parametrize("channels", [1, 3])
def test_mirrored_files_are_mirrored_images(channels):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (2, 5, 4, channels), "uint8")
    files = [tf.io.encode_png(image).numpy() for image in images]
    for mirrored, image in zip(mirror(np.array(files, object)), images):
        assert np.array_equal(tf.io.decode_png(mirrored), image[:, ::-1])
    assert np.array_equal(mirror(images)[1, 2, 0], images[1, 2, -1])
