"""The descriptions in exported files, in every format."""

import json
import shutil
import sys
import zipfile

import keras
import numpy as np
import pytest

from keras_vit import Preprocessing
from keras_vit.export import (
    FORMATS,
    Serving,
    export_model,
    read_class_names,
    read_description,
)
from keras_vit.export.formats.tflite import to_tflite
from keras_vit.preprocessing.description import (
    central_crop_step,
    resize_small_step,
)
from tests.export.web_engine import stand_in_engine

# With all that XML, JSON and lines of text could break.
NAMES = [
    "cat",
    "<b> & 'c'",
    'a "quoted" one',
    "Bär 猫",
    "back\\slash",
    "f",
    "g",
]
STEPS = [resize_small_step(7), central_crop_step((5, 4))]


@pytest.fixture(scope="module")
def model():
    """Return the least that has classes."""
    pixels = keras.Input((5, 4, 3), name="images")
    x = keras.layers.GlobalAveragePooling2D()(pixels)
    layer = keras.layers.Dense(len(NAMES), kernel_initializer="orthogonal")
    return keras.Model(pixels, layer(x), name="tiny")


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((2, 5, 4, 3), "float32")


@pytest.fixture(scope="module")
def serving():
    return Serving(
        class_names=NAMES,
        preprocessing=Preprocessing("zero_one"),
        read_image=lambda encoded: encoded,
        image_steps=STEPS,
    )


@pytest.fixture(scope="module")
def exported(model, images, serving, tmp_path_factory):
    """Return the path of the export in each format."""
    folder = tmp_path_factory.mktemp("exports")
    for package in ("onnx", "tf2onnx", "openvino"):
        pytest.importorskip(package)
    # A server would call `read_image`, which is not a real one here.
    formats = FORMATS.keys() - {"saved_model"}
    with stand_in_engine() as engine:
        report = export_model(
            model,
            folder,
            images,
            sorted(formats),
            name="pets",
            serving=serving,
            web_engine_dir=engine,
            threads=(),
            verbose=False,
        )
        server = export_model(
            model,
            folder,
            images,
            ["saved_model"],
            name="pets",
            serving=Serving(
                class_names=NAMES, preprocessing=Preprocessing("zero_one")
            ),
            threads=(),
            verbose=False,
        )
    paths = [a.path for a in (*report.agreements, *server.agreements)]
    return dict(zip([*sorted(formats), "saved_model"], paths))


@pytest.mark.parametrize("format", FORMATS)
def test_labels_and_preprocessing_are_read_back(exported, format):
    assert read_class_names(exported[format]) == NAMES
    description = read_description(exported[format])
    expected = {
        "name": "pets",
        "mean": [0.0] * 3,
        "deviation": [1.0] * 3,
        "output": "logits",
        "activation": "softmax",
        "class_names": NAMES,
        "input": {
            "height": 5,
            "width": 4,
            "channels": 3,
            "dtype": "float32",
        },
    }
    assert description.items() >= expected.items()
    if format != "saved_model":
        assert description["image_steps"] == STEPS
    else:
        assert description["image_steps"][0]["method"] == "antialias"


def test_tflite_has_them_inside_and_beside(exported):
    folder = exported["tflite"].rpartition("/")[0]
    with zipfile.ZipFile(exported["tflite"]) as archive:
        assert archive.namelist() == ["labels.txt", "model.json"]
        for name in archive.namelist():
            with open(f"{folder}/{name}", "rb") as file:
                assert file.read() == archive.read(name)
    with open(f"{folder}/labels.txt", encoding="utf-8") as file:
        assert file.read().splitlines() == NAMES
    with open(f"{folder}/model.json", encoding="utf-8") as file:
        assert json.load(file) == read_description(exported["tflite"])


def test_runtimes_read_them_without_our_help(exported):
    import onnxruntime
    import openvino

    session = onnxruntime.InferenceSession(exported["onnx"])
    text = session.get_modelmeta().custom_metadata_map["keras_vit"]
    assert json.loads(text)["class_names"] == NAMES
    graph = openvino.Core().read_model(exported["openvino"])
    text = graph.get_rt_info("keras_vit").astype(str)
    assert json.loads(text)["class_names"] == NAMES


def test_a_file_without_a_description(model, images, tmp_path, exported):
    path = tmp_path / "plain.tflite"
    path.write_bytes(to_tflite(model))
    with pytest.raises(ValueError, match="must be a file with a description"):
        read_description(path)
    folder = tmp_path / "saved_model"
    shutil.copytree(exported["saved_model"], folder)
    (folder / "assets.extra/keras_vit.json").unlink()
    with pytest.raises(ValueError, match="must be a file with a description"):
        read_class_names(folder)
    with pytest.raises(ValueError, match="must be a file that ends in"):
        read_class_names(tmp_path / "model.h5")


def test_features_have_no_labels(model, images, tmp_path):
    report = export_model(
        model,
        tmp_path,
        images,
        ["tflite"],
        serving=Serving(output="features"),
        threads=(),
        verbose=False,
    )
    [path] = [a.path for a in report.agreements]
    with pytest.raises(ValueError, match="must be the export of a classifier"):
        read_class_names(path)
    assert read_description(path)["activation"] is None


def test_classes_without_names_are_numbers(model, images, tmp_path):
    report = export_model(
        model, tmp_path, images, ["tflite"], threads=(), verbose=False
    )
    assert read_class_names(report.agreements[0].path) == list("0123456")


def test_the_package_that_reads_a_file_is_named(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match="pip install onnx"):
        read_class_names(exported["onnx"])
