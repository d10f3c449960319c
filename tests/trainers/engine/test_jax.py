"""The JAX engine: one update on any devices, and checkpoints in pieces."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.trainers.engine.on_jax import CASES

pytestmark = pytest.mark.slow(20)


def start(folder):
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    return subprocess.run(
        [sys.executable, "-m", "tests.trainers.engine.on_jax", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pieces")


@pytest.fixture(scope="module")
def results(folder):
    done = start(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_equal(got, want):
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-5)
    for a, b in zip(got["weights"], want["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_devices_do_not_change_an_update(results, case):
    """Also with dropout, a clipped sum, and weights that are split."""
    *_, parts = case
    want = results[f"one_device 1 {parts}"]
    assert_equal(results[" ".join(map(str, case))], want)


def test_split_weights_continue_on_other_devices(results):
    assert results["shard"] == [32, 64 // 8]
    assert_equal(results["continued"], results["one_device 1 1"])


def test_a_flipped_bit_of_a_checkpoint_is_noticed(results, folder):
    """The one before it is used."""
    [file] = folder.glob("step-00000003/*.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    done = start(folder)
    assert done.returncode == 0
    assert "the one before it is used: " in done.stderr
    assert "checksum" in done.stderr
