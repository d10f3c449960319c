"""The engine of JAX: updates, checkpoints, and every mode as on TensorFlow."""

import json
import os
import shutil

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests import commands
from tests.tiny import randomize, tiny_config
from tests.trainers.engine.on_jax import (
    CASES,
    DRAWING_MODES,
    MODES,
    SUMS,
    run,
    small_loop,
    state_of,
    train_kept,
    train_small,
    why_refused,
)
from tests.trainers.made import write_pairs
from trainers.training.report import read_metrics
from trainers.training.run_folder import RunFolder

pytestmark = pytest.mark.slow(100)

# Largest difference by rounding, as a share of the largest change of a weight.
HALF_PRECISION = {"float16": 0.01, "bfloat16": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Return the path of a model of digits; beside it are images with maps."""
    path = tmp_path_factory.mktemp("teacher") / "model.keras"
    for kind in ("segment", "depth"):
        write_pairs(path.parent / kind, kind, 24)
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1}
    config = tiny_config(**sizes, num_classes=10)
    randomize(VisionTransformer(config), 1).save(path)
    return str(path)


@pytest.fixture(scope="module")
def of_tensorflow(folder):
    """Return the state after a training on TensorFlow, in a checkpoint."""
    loop = small_loop("one_device", 1, 1, str(folder / "of_tensorflow"))
    train_small(loop, 1)
    return state_of(loop)


@pytest.fixture(scope="module")
def results(folder, of_tensorflow, teacher):
    """Return what a small model gives on JAX; see on_jax.py."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8"
    choice = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    words = ["-m", "tests.trainers.engine.on_jax", folder, teacher]
    done = commands.run(words, commands.environment() | choice)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def states(results, folder):
    """Return the states of all modes on JAX."""
    with np.load(folder / "states.npz") as states:
        return dict(states)


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


def test_an_update_is_compiled_once(results):
    """Not again for arrays that the first one returned."""
    assert len(results["compiled"]) == len(CASES)
    assert set(results["compiled"].values()) == {1}


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
    of_jax = small_loop("mirrored", 1, 1, str(tmp_path))
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
    train_small(of_jax, 2)
    assert of_jax.step == 2


@pytest.mark.parametrize("case", SUMS)
def test_gradients_are_summed_in_no_other_type_than_asked_for(results, case):
    refused = results["sums"][" ".join(case)]
    if SUMS[case] is None:
        assert not refused
    else:
        assert f"`gradient_dtype` must be '{SUMS[case]}'" in refused
        assert f"gradient_dtype='{case[-1]}'" in refused


def test_accelerators_say_how_much_memory_they_have(results):
    """Those of JAX, not those that TensorFlow sees; CPUs say nothing."""
    assert results["limits"] == [[], [7, 5]]


def test_the_host_does_not_fill_a_device_with_batches(results):
    assert results["waiting"] == [1, 1]  # In training, and at rest.


def test_a_skipped_update_leaves_weights_and_statistics(results):
    factor, *changes = results["skipped"]
    assert factor == 2.0**59 and len(changes) == 6 and not any(changes)


@pytest.mark.parametrize("source", [".", "of_tensorflow"])
def test_a_checkpoint_that_lacks_a_number_is_refused(results, folder, source):
    """By each engine: nothing stays as it is in a new training."""
    on_tensorflow = why_refused("mirrored", str(folder / source))
    for reason in (on_tensorflow, results["refused"][source]):
        assert ": it lacks best. " in reason


def test_a_flipped_bit_of_a_checkpoint_is_noticed(results):
    """The one before it is used."""
    step, [warning] = results["damaged"]
    assert step == 1
    assert "the one before it is used: " in warning and "checksum" in warning


def state_in(states, mode, strategy):
    """Return {name: array} of a mode."""
    start = f"{mode}/{strategy}/"
    return {
        name.removeprefix(start): array
        for name, array in states.items()
        if name.startswith(start)
    }


def assert_close(got, want, rounding=0.0, atol=1e-5):
    """Compare states.

    Weights and their averages to `atol`, sums relatively to 1e-5, and slots
    to 1 % of the largest number, or each to `rounding` if that is more.
    """
    assert got.keys() == want.keys()
    for name, array in want.items():
        # Some gradients are rounding alone, such as those of keys' biases.
        bound = max(rounding, 0.01) * abs(array).max() + 1e-7
        if name.startswith("sums"):
            bound = max(rounding, 1e-5) * abs(array).max()
        if name.startswith("model") or name.endswith("average"):
            bound = atol
        np.testing.assert_allclose(
            got[name], array, rtol=0, atol=bound, err_msg=name
        )


@pytest.mark.parametrize("mode", MODES)
def test_updates_are_those_of_tensorflow(states, teacher, mode):
    """Weights, optimizer, averages, loss scale and the sums of the loss."""
    before, want = run(mode, "one_device", teacher)
    got = state_in(states, mode, "fsdp")
    change = max(
        abs(want[name] - before[name]).max()
        for name in before
        if name.startswith("model")
    )
    assert change > 1e-3
    rounding = HALF_PRECISION.get(mode, 0.0)
    assert_close(got, want, rounding, rounding * change or 1e-5)


@pytest.mark.parametrize("mode", DRAWING_MODES)
def test_what_is_drawn_does_not_depend_on_the_devices(states, mode):
    one, several = (
        state_in(states, mode, name) for name in ("one_device", "fsdp")
    )
    assert len(one) > 50
    assert_close(several, one)


def test_a_run_keeps_the_same_model_and_draws(
    states, folder, tmp_path, pictures
):
    """The best of three evaluations, with pictures of the attention."""
    train_kept("one_device", str(tmp_path))
    folders = folder / "run", tmp_path
    got, want = (read_metrics(RunFolder(f).metrics_path) for f in folders)
    names = ("step", "loss", "accuracy", "val_loss", "val_accuracy")
    for a, b in zip(got, want, strict=True):
        for name in names:
            assert a[name] == pytest.approx(b[name], rel=1e-4)
    scores = [float(row["val_accuracy"]) for row in want]
    assert scores[1] > max(scores[0], scores[2])
    models = [
        keras.saving.load_model(f / "model.keras", compile=False)
        for f in folders
    ]
    for a, b in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    there, here = ({path.name for path in f.iterdir()} for f in folders)
    assert there == here
