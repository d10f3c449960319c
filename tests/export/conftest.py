"""The small model that the exports are tested on, its images and a bundle."""

import pytest

from keras_vit import VisionTransformer
from keras_vit.export import FORMATS, QUANTIZATIONS, Serving, export_model
from tests.export.web_engine import stand_in_engine
from tests.tiny import noise, randomize, tiny_config

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
def images():
    return noise(16, *IMAGE_SIZE, 3, seed=1, scale=0.5).clip(-1, 1)


@pytest.fixture(scope="session")
def model():
    return make_model()


@pytest.fixture(scope="session")
def shallow():
    """Return a model of one block, for tests that hold for any depth."""
    return make_model(depth=1)


@pytest.fixture(scope="module")
def engine():
    """Return a folder with stand-ins for the packages of LiteRT.js."""
    with stand_in_engine() as folder:
        yield folder


@pytest.fixture(scope="session")
def bundle(model, images, tmp_path_factory):
    """Return the comparison of each file of an export in all formats."""
    for package in ("onnx", "tf2onnx", "openvino", "ai_edge_quantizer"):
        pytest.importorskip(package)
    with stand_in_engine() as engine:
        report = export_model(
            model,
            tmp_path_factory.mktemp("bundle"),
            images,
            [*FORMATS],
            name="pets",
            serving=Serving(class_names=NAMES, top=3, use_attention=True),
            tflite_quantizations=[*QUANTIZATIONS],
            tflite_batch_size=None,
            calibration_images=images,
            web_engine_dir=engine,
            **QUIET,
        )
    return {agreement.kind: agreement for agreement in report.agreements}


# The kind of the float32 file of each format.
KINDS = {
    format: {"tflite": "tflite float32", "web": "web float32"}.get(
        format, format
    )
    for format in FORMATS
}
