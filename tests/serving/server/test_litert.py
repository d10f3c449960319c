"""The server with TFLite files."""

import keras
import numpy as np
import pytest

from keras_vit.export.formats.tflite import export_tflite, run_tflite, to_tflite
from keras_vit.serving import ServingError, connect
from tests.serving.server.running import poll_model, run_server

SHAPE = (6, 4, 3)
IMAGES = np.random.default_rng(0).uniform(-1, 1, (5, *SHAPE)).astype("f4")


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    """Return a server of three files: of any batch, of 2, and in int8."""
    folder = tmp_path_factory.mktemp("tflite")
    path = folder / "any" / "1" / "float32.tflite"
    path.parent.mkdir(parents=True)
    export_tflite(model, path, IMAGES, "float32", batch_size=None)
    for name, arguments in (
        ("two", ("float32", 2)),
        ("int8", ("int8", 1, IMAGES)),
    ):
        (folder / name / "1").mkdir(parents=True)
        content = to_tflite(model, *arguments)
        (folder / name / "1" / "model.tflite").write_bytes(content)
    names = ("any", "two", "int8")
    models = {name: poll_model(name, folder / name) for name in names}
    with run_server(models) as address:
        address.folder = folder
        yield address


@pytest.mark.parametrize("name", ["any", "two", "int8"])
def test_answers_are_those_of_the_file(address, model, name):
    """For any number of images, floats in and out."""
    with connect(address, model=name) as client:
        found = client.predict({"images": IMAGES})["probabilities"]
        alone = client.predict({"images": IMAGES[4:]})["probabilities"]
    [path] = (address.folder / name / "1").iterdir()
    expected = run_tflite(path.read_bytes(), IMAGES)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(alone, expected[4:], atol=1e-6)
    close = {"atol": 0.03 if name == "int8" else 1e-5}
    np.testing.assert_allclose(found, model.predict(IMAGES, verbose=0), **close)


def test_signatures(address):
    with connect(address, model="int8") as client:
        [(name, signature)] = client.metadata().items()
    assert name == "serving_default"
    assert signature.inputs["images"].shape == (None, *SHAPE)
    assert signature.outputs["probabilities"].dtype == "float32"


def test_images_of_another_size(address):
    """LiteRT would resize its input."""
    with connect(address, model="any") as client:
        with pytest.raises(ServingError, match="not compatible with expected"):
            client.predict({"images": IMAGES.reshape(10, 3, 4, 3)})


def test_folders_that_hold_no_model(tmp_path):
    for files, message in (
        ({}, "Received: neither"),
        ({"a.tflite": b"", "b.tflite": b""}, "Received: a.tflite, b.tflite"),
        ({"damaged.tflite": b"no model"}, "ValueError: "),
    ):
        folder = tmp_path / str(len(files) + len(message)) / "1"
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        model = poll_model("m", folder.parent)
        [row] = model.status()["model_version_status"]
        assert row["state"] == "END" and not model.is_available
        assert message in row["status"]["error_message"]
