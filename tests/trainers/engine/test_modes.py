"""Every mode of the trainers on eight devices of JAX, against TensorFlow."""

import os

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests import commands
from tests.tiny import randomize, tiny_config
from tests.trainers.engine.modes import (
    DRAWING_MODES,
    MODES,
    run,
    train_kept,
)
from trainers.training.report import read_metrics
from trainers.training.run_folder import RunFolder

pytestmark = pytest.mark.slow(100)

# Largest difference by rounding, as a share of the largest change of a weight.
HALF_PRECISION = {"float16": 0.01, "bfloat16": 0.1}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Return the path of a model of digits."""
    path = tmp_path_factory.mktemp("teacher") / "model.keras"
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1}
    config = tiny_config(**sizes, num_classes=10)
    randomize(VisionTransformer(config), 1).save(path)
    return str(path)


@pytest.fixture(scope="module")
def on_jax(teacher, tmp_path_factory):
    """Return the states that JAX reaches, and the folder of its run."""
    folder = tmp_path_factory.mktemp("jax")
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8"
    choice = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    words = ["-m", "tests.trainers.engine.modes", folder / "states.npz"]
    done = commands.run([*words, teacher], commands.environment() | choice)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(folder / "states.npz") as states:
        return dict(states), folder / "run"


def state_of(states, mode, strategy):
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
        bound = max(rounding, 0.01) * abs(array).max()
        if name.startswith("sums"):
            bound = max(rounding, 1e-5) * abs(array).max()
        if name.startswith("model") or name.endswith("average"):
            bound = atol
        np.testing.assert_allclose(
            got[name], array, rtol=0, atol=bound, err_msg=name
        )


@pytest.mark.parametrize("mode", MODES)
def test_updates_are_those_of_tensorflow(on_jax, teacher, mode):
    """Weights, optimizer, averages, loss scale and the sums of the loss."""
    before, want = run(mode, "one_device", teacher)
    got = state_of(on_jax[0], mode, "fsdp")
    change = max(
        abs(want[name] - before[name]).max()
        for name in before
        if name.startswith("model")
    )
    assert change > 1e-3
    rounding = HALF_PRECISION.get(mode, 0.0)
    assert_close(got, want, rounding, rounding * change or 1e-5)


@pytest.mark.parametrize("mode", DRAWING_MODES)
def test_what_is_drawn_does_not_depend_on_the_devices(on_jax, mode):
    one, several = (
        state_of(on_jax[0], mode, name) for name in ("one_device", "fsdp")
    )
    assert len(one) > 50
    assert_close(several, one)


def test_a_run_keeps_the_same_model_and_draws(on_jax, tmp_path, pictures):
    """The best of three evaluations, with pictures of the attention."""
    _, folder = on_jax
    train_kept("one_device", str(tmp_path))
    folders = folder, tmp_path
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
    assert {p.name for p in folder.iterdir()} == {
        p.name for p in tmp_path.iterdir()
    }
