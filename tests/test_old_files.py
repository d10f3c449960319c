"""Files of version 0.1 as it was before its folders were rebuilt.

Written at commit c2616b5; `expected.npz` contains the outputs of that commit.
"""

import pathlib
import shutil

import keras
import numpy as np
import pytest

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


@tensorflow_only
def test_a_run_that_was_stopped_goes_on(tmp_path):
    """At update 4 of 6; the same commit then trained the rest in one go."""
    from trainers.runs.run import Run
    from trainers.train import prepare, train

    folder = shutil.copytree(FOLDER / "run", tmp_path / "run")
    job = prepare(Run(folder).load_recipe(), str(folder))
    assert job.loop.step == 4
    train(job)
    model = keras.models.load_model(folder / "model.keras")
    for weight in model.weights:
        # Another processor may round otherwise.
        np.testing.assert_allclose(
            weight.numpy(), EXPECTED[f"run/{weight.path}"], atol=1e-6
        )
