"""The JAX engine: one update on any devices, and checkpoints in pieces."""

import json
import os
import shutil

import numpy as np
import pytest

from tests import commands
from tests.trainers.engine.on_jax import (
    CASES,
    SUMS,
    make_loop,
    state_of,
    train,
    why_refused,
)

pytestmark = pytest.mark.slow(20)


def start(folder):
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    words = ["-m", "tests.trainers.engine.on_jax", folder]
    return commands.run(words, environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pieces")


@pytest.fixture(scope="module")
def of_tensorflow(folder):
    """Return the state after a training on TensorFlow, in a checkpoint."""
    loop = make_loop("one_device", 1, 1, str(folder / "of_tensorflow"))
    train(loop, 1)
    return state_of(loop)


@pytest.fixture(scope="module")
def results(folder, of_tensorflow):
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


def test_a_training_continues_on_the_other_engine(
    results, folder, of_tensorflow, capsys, tmp_path
):
    """Weights, averages and numbers of updates are those of the other."""

    def without_seeds(state):
        # Those of dropout have two numbers; each engine sets its own.
        return [w for w in state["weights"] if np.shape(w) != (2,)]

    shutil.copytree(folder / "step-00000001", tmp_path / "step-00000001")
    of_jax = make_loop("mirrored", 1, 1, str(tmp_path))
    assert "of another engine" in capsys.readouterr().out
    pairs = (
        (state_of(of_jax), results["after_one"]),
        (results["of_tensorflow"], of_tensorflow),
    )
    for got, want in pairs:
        assert got["step"] == got["iterations"] == 1
        for read in (without_seeds, lambda state: state["averages"]):
            for a, b in zip(read(got), read(want), strict=True):
                np.testing.assert_array_equal(a, b)
    train(of_jax, 2)
    assert of_jax.step == 2


@pytest.mark.parametrize("case", SUMS)
def test_gradients_are_summed_in_no_other_type_than_asked_for(results, case):
    refused = results["sums"][" ".join(case)]
    if SUMS[case] is None:
        assert not refused
    else:
        assert f"`gradient_dtype` must be '{SUMS[case]}'" in refused
        assert f"gradient_dtype='{case[-1]}'" in refused


def test_the_host_does_not_fill_a_device_with_batches(results):
    assert results["waiting"] == [1, 1]  # In training, and at rest.


@pytest.mark.parametrize("source", [".", "of_tensorflow"])
def test_a_checkpoint_that_lacks_a_number_is_refused(results, folder, source):
    """By each engine: nothing stays as it is in a new training."""
    on_tensorflow = why_refused("mirrored", str(folder / source))
    for reason in (on_tensorflow, results["refused"][source]):
        assert ": it lacks best. " in reason


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
