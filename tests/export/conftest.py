"""The small model that the exports are tested on, its images and a bundle."""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, preprocess_input
from keras_vit.export import FORMATS, QUANTIZATIONS, Serving, export_model
from tests.export.web_engine import stand_in_engine
from tests.shared import made_once
from tests.tiny import randomize, tiny_config
from tests.trainers.conftest import graphs_as_written  # noqa: F401

IMAGE_SIZE = (32, 24)
# With all that XML, JSON and lines of text could break.
NAMES = [
    *("cat", "<b> & 'c'", 'a "quoted" one', "Bär 猫", "back\\slash"),
    *("f, g", "h"),
]
QUIET = {"threads": (), "verbose": False}


def make_model(dtype=None, **choices):
    """Return a model whose weights are all random, none zero."""
    config = tiny_config(**{"image_size": IMAGE_SIZE, **choices})
    return randomize(VisionTransformer(config, dtype=dtype))


@pytest.fixture(scope="session")
def pixels():
    random = np.random.default_rng(4)
    return random.integers(0, 256, (96, *IMAGE_SIZE, 3), "uint8")


@pytest.fixture(scope="session")
def images(pixels):
    return preprocess_input(pixels)


@pytest.fixture(scope="session")
def model():
    return make_model()


@pytest.fixture(scope="session")
def shallow():
    """Return a model of one block, for tests that hold for any depth."""
    return make_model(depth=1)


@pytest.fixture(scope="session")
def flat():
    """Return a classifier of one layer, for tests that hold for any model."""
    kernel = keras.initializers.Orthogonal(seed=0)
    layer = keras.layers.Dense(7, kernel_initializer=kernel)
    pixels = keras.Input((*IMAGE_SIZE, 3))
    return keras.Model(pixels, layer(keras.layers.Flatten()(pixels)))


@pytest.fixture(scope="module")
def engine():
    """Return a folder with stand-ins for the packages of LiteRT.js."""
    with stand_in_engine() as folder:
        yield folder


def export_all(folder, model, images, serving):
    """Return the comparison of each file of an export in all formats."""
    for package in ("onnx", "tf2onnx", "openvino", "ai_edge_quantizer"):
        pytest.importorskip(package)
    with stand_in_engine() as engine:
        report = export_model(
            model,
            folder,
            images,
            [*FORMATS],
            name="pets",
            serving=serving,
            tflite_quantizations=[*QUANTIZATIONS],
            tflite_batch_size=None,
            calibration_images=images,
            web_engine_dir=engine,
            **QUIET,
        )
    return {agreement.kind: agreement for agreement in report.agreements}


@pytest.fixture(scope="session")
def thresholds(model, images):
    """Return a threshold for each label, between all images and one.

    Those of even labels are at the largest probability, the others at the
    least; by turns just below it and just above: outputs may differ by 1e-5.
    """
    found = 1 / (1 + np.exp(-model.predict_on_batch(images).astype("float64")))
    label = np.arange(7)
    ends = np.where(label % 2, found.min(axis=0), found.max(axis=0))
    return ends - 1e-4 * (-1) ** (label // 2)


@pytest.fixture(scope="session")
def serving(thresholds):
    return Serving(
        class_names=NAMES,
        activation="sigmoid",
        thresholds=thresholds,
        use_attention=True,
    )


@pytest.fixture(scope="session")
def bundle(model, images, serving, tmp_path_factory):
    """Return the comparison of each file of an export in all formats."""
    return made_once(
        tmp_path_factory,
        "bundle",
        lambda folder: export_all(folder, model, images, serving),
    )


# The kind of the float32 file of each format.
KINDS = {
    format: {"tflite": "tflite float32", "web": "web float32"}.get(
        format, format
    )
    for format in FORMATS
}
