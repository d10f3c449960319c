"""Files of version 0.1 as it was before its modules were merged.

Written at commit d1acaf4; `expected.npz` and `finished/evaluation.json` are the
outputs of that commit.
"""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

from tests import commands
from tests.tiny import tensorflow_only

FOLDER = pathlib.Path(__file__).parent / "golden" / "version_0_1"
EXPECTED = np.load(FOLDER / "expected.npz")


# A classifier with a frozen block; a hybrid of dynamic image size with
# attention pooling; an int8 model that averages patches.
@pytest.mark.parametrize("name", ["classifier", "hybrid", "quantised"])
def test_a_keras_file_loads_and_answers_as_it_did(name):
    model = keras.models.load_model(FOLDER / f"{name}.keras")
    answers = model(EXPECTED[f"{name}_images"], training=False)
    expected = EXPECTED[f"{name}_answers"]
    error = np.abs(keras.ops.convert_to_numpy(answers) - expected).max()
    assert error <= 1e-5 * np.abs(expected).max()


def test_a_frozen_block_stays_frozen():
    model = keras.models.load_model(FOLDER / "classifier.keras")
    frozen = [layer.name for layer in model.layers if not layer.trainable]
    assert frozen == ["block_00"]


CONTINUE = """
import pathlib
from trainers.training.run_folder import RunFolder
from trainers.train import prepare
job = prepare(RunFolder(pathlib.Path("run")).load_recipe(), "run")
assert job.loop.step == 4
job.train()
"""


@tensorflow_only
def test_a_finished_run_is_evaluated_as_it_was(tmp_path):
    from trainers.commands import open_source
    from trainers.evaluation.evaluation import evaluate

    folder = shutil.copytree(FOLDER / "finished", tmp_path / "finished")
    expected = json.loads((folder / "evaluation.json").read_text())
    report = evaluate(*open_source(str(folder)))
    del expected["model"]
    for name, value in expected.items():
        if isinstance(value, float):
            value = pytest.approx(value, abs=1e-5)
        assert report[name] == value, name


@tensorflow_only
def test_a_run_that_was_stopped_goes_on(tmp_path, subprocess_environment):
    """At update 4 of 6; the same commit then trained the rest in one go.

    In a process of its own: here, other tests may have changed how TensorFlow
    rewrites graphs, and so how it rounds.
    """
    folder = shutil.copytree(FOLDER / "run", tmp_path / "run")
    done = commands.run(["-c", CONTINUE], subprocess_environment, tmp_path)
    assert done.returncode == 0, done.stderr
    model = keras.models.load_model(folder / "model.keras")
    for weight in model.weights:
        value, expected = weight.numpy(), EXPECTED[f"run/{weight.path}"]
        if weight.path.endswith("qkv/bias"):
            # A bias of the keys adds the same to all products of a query, so
            # its gradient is rounding alone, of which Adam makes any number.
            keys = np.split(np.arange(value.size), 3)[1]
            value, expected = (np.delete(x, keys) for x in (value, expected))
        # Another processor may round otherwise.
        np.testing.assert_allclose(value, expected, atol=1e-6)
