"""Exports of models with an answer for each pixel."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.export import (
    FORMATS,
    DisagreementError,
    Serving,
    contract,
    export_file,
    export_model,
    read_class_names,
    read_description,
)
from keras_vit.export.agreement import FLOAT32, compare_outputs
from keras_vit.export.formats import onnx, saved_model
from keras_vit.known import KnownScore
from keras_vit.models import DenseConfig, dense_predictor
from keras_vit.models.features import name_output
from tests.export.conftest import IMAGE_SIZE, KINDS, QUIET, make_model
from tests.export.test_formats import READERS, every_format
from tests.pictures import encode
from tests.tiny import randomize

NAMES = ["sky", "Bär 猫", "grass", "road", "water"]
# Depths within 20 metres.
DEPTHS = DenseConfig(1, activation="sigmoid", output_scale=20)


def make_dense(config, dtype=None):
    return randomize(dense_predictor(make_model(dtype, depth=1), config))


@pytest.fixture(scope="module")
def models():
    """Return a model of each task, by its output."""
    return {
        "pixel_logits": make_dense(DenseConfig(5)),
        "depths": make_dense(DEPTHS),
    }


@pytest.fixture(scope="module")
def exports(models, images, engine, tmp_path_factory):
    """Return the report on each model, in all formats."""
    for row in FORMATS.values():
        for package in row.packages:
            pytest.importorskip(package)
    return {
        output: export_model(
            model,
            tmp_path_factory.mktemp(output),
            images[:16],
            [*FORMATS],
            serving=Serving(
                class_names=NAMES if output == "pixel_logits" else None
            ),
            tflite_quantizations=["float32", "dynamic_int8"],
            tflite_batch_size=None,
            web_engine_dir=engine,
            files=[encode(np.full((50, 40, 3), 99, "uint8"), "JPEG")],
            **QUIET,
        )
        for output, model in models.items()
    }


def path_of(exports, output, format):
    [path] = [
        agreement.path
        for agreement in exports[output].agreements
        if agreement.kind == KINDS[format]
    ]
    return path


@every_format
@pytest.mark.parametrize("output", ["pixel_logits", "depths"])
def test_maps_are_those_of_keras(format, output, exports, models, images):
    path = path_of(exports, output, format)
    [(name, found)] = READERS[format](path, images[:3]).items()
    expected = models[output].predict_on_batch(images[:3])
    assert name == output and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    about = read_description(path)
    height, width = IMAGE_SIZE
    assert about["output"] == output and about["activation"] is None
    assert about["output_size"] == {"height": height, "width": width}
    if output == "depths":
        assert about["task"] == "depth" and about["larger_depths"] == "far"
        with pytest.raises(ValueError, match="returns depths"):
            read_class_names(path)
    else:
        assert about["task"] == "segment" and "larger_depths" not in about
        assert read_class_names(path) == NAMES


def test_the_report_is_about_pixels(exports):
    for agreement in exports["pixel_logits"].agreements:
        least = 0.9 if "int8" in agreement.kind else 0.999
        assert least <= agreement.mean_iou <= 1
    text = str(exports["pixel_logits"])
    assert "| same class | mean IoU | verdict |" in text
    text = str(exports["depths"])
    assert "| cosine | relative difference | verdict |" in text
    assert "class" not in text and "nan" not in text
    for agreement in exports["depths"].agreements:
        least = 0.05 if "int8" in agreement.kind else 1e-5
        assert 0 < agreement.relative_difference <= least


@pytest.fixture(scope="module")
def files():
    """Return photos of any size."""
    random = np.random.default_rng(3)
    sizes = [(50, 70), (32, 24), (9, 80)]
    return [
        encode(random.integers(0, 256, (*size, 3), "uint8")) for size in sizes
    ]


def ask(exports, output, files):
    """Return what the SavedModel answers to files, and to their images."""
    path = path_of(exports, output, "saved_model")
    signatures = tf.saved_model.load(path).signatures
    assert {*signatures} == {"serve_bytes", "serve_uint8", "serving_default"}
    images = saved_model.decode_inputs(
        tf.constant(files), (*IMAGE_SIZE, 3), Serving()
    )
    answers = signatures["serve_bytes"](image_bytes=tf.constant(files))
    maps = signatures["serving_default"](images=images)[output].numpy()
    return {key: x.numpy() for key, x in answers.items()}, maps


def read_levels(contents, mode):
    images = [Image.open(io.BytesIO(content)) for content in contents]
    assert {image.mode for image in images} == {mode}
    return np.stack([np.asarray(image) for image in images])


def test_files_in_class_maps_out(exports, files):
    answers, logits = ask(exports, "pixel_logits", files)
    classes = answers["classes"]
    assert classes.dtype == np.uint8
    np.testing.assert_array_equal(classes, logits.argmax(axis=-1))
    pixels = read_levels(answers["png_bytes"], "L")
    np.testing.assert_array_equal(pixels, classes)
    for row, names, shares in zip(
        classes, answers["class_names"], answers["shares"]
    ):
        assert [name.decode() for name in names] == NAMES
        counts = np.bincount(row.ravel(), minlength=5)
        np.testing.assert_allclose(shares, counts / row.size, rtol=1e-6)


def test_files_in_depths_out(exports, files):
    answers, depths = ask(exports, "depths", files)
    np.testing.assert_allclose(answers["depths"], depths, rtol=1e-5)
    about = read_description(path_of(exports, "depths", "saved_model"))
    assert about["png"] == {"levels": 65535, "range": "png_range"}
    levels = read_levels(answers["png_bytes"], "I;16")
    for found, level, (low, high) in zip(
        answers["depths"][..., 0], levels, answers["png_range"]
    ):
        assert (low, high) == (found.min(), found.max())
        assert level.min() == 0 and level.max() == 65535
        np.testing.assert_allclose(
            low + level / 65535 * (high - low), found, atol=20 / 65535
        )


def test_maps_without_depth_and_of_many_classes():
    flat = np.full((2, 4, 3, 1), 7.5, "float32")
    answers = saved_model.draw_map(tf.constant(flat), "depths", Serving())
    levels = read_levels(answers["png_bytes"].numpy(), "I;16")
    assert not levels.any() and (answers["png_range"].numpy() == 7.5).all()
    logits = np.zeros((1, 2, 2, 300), "float32")
    logits[0, 0, 1, 299] = 1
    answers = saved_model.draw_map(
        tf.constant(logits), "pixel_logits", Serving()
    )
    assert answers["classes"].dtype == tf.int32
    for found in (
        answers["classes"].numpy(),
        read_levels(answers["png_bytes"].numpy(), "I;16"),
    ):
        assert found.tolist() == [[[0, 299], [0, 0]]]


def disturb(outputs):
    """Return outputs where another class is the largest in every 50th pixel."""
    outputs = dict(outputs)
    maps = outputs["pixel_logits"].copy()
    spots = maps.reshape(-1, maps.shape[-1])[::50]
    spots[:] = -spots
    return {**outputs, "pixel_logits": maps}


def test_disturbed_pixels_are_refused(models, images, tmp_path, monkeypatch):
    load = onnx.load

    def load_disturbed(path):
        loaded = load(path)
        return loaded._replace(
            call=lambda *args, **options: disturb(loaded.call(*args, **options))
        )

    monkeypatch.setattr(onnx, "load", load_disturbed)
    path, model = tmp_path / "model.onnx", models["pixel_logits"]
    with pytest.raises(DisagreementError, match="IoU .* is 0.8.* least 0.999"):
        export_file(model, path, images[:8])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": np.array([[[0, 1], [1, 1]]])}, "classes: the mean IoU"),
        ({"shares": np.array([[0.25, 0.75]])}, "shares: 2.5e-01 away"),
        ({"class_names": np.array([[b"b", b"a"]], object)}, "class_names: exp"),
        (
            {"png_bytes": [encode(np.eye(2, dtype="uint8"))]},
            "png_bytes: number",
        ),
        ({"png_bytes": [encode(np.zeros((1, 2), "uint8"))]}, "number 0 is not"),
        ({"png_bytes": [b"text"]}, "png_bytes: number 0 is no PNG"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_part_of_an_answer_is_compared(changes, words):
    classes = np.array([[[0, 0], [1, 1]]])
    right = {
        "classes": classes,
        "shares": np.array([[0.5, 0.5]]),
        "class_names": np.array([[b"a", b"b"]], object),
        "png_bytes": np.array([encode(classes[0].astype("uint8"))], object),
    }
    assert not compare_outputs(right, right, FLOAT32).faults
    wrong = {**right, **{k: np.asarray(x) for k, x in changes.items()}}
    faults = compare_outputs(right, wrong, FLOAT32).faults
    assert any(words in fault for fault in faults)


@pytest.mark.parametrize(
    ("place", "level", "is_right"),
    [(0, 40000, True), (0, 40002, False), (1, 40002, False)],
)
def test_the_png_of_depths_is_compared(place, level, is_right):
    """To half a level, of each image in its own range."""
    lows, steps = np.array([1, 0.5]), np.array([1e-3, 5e-4])
    levels = np.array([[[0, 40000, 65535]]] * 2)
    depths = lows[:, None, None] + levels * steps[:, None, None]
    levels[place, 0, 1] = level
    files = [encode(image.astype("uint16")) for image in levels]
    answer = {
        "depths": np.float32(depths)[..., None],
        "png_range": np.float32(np.stack([lows, lows + 65535 * steps], 1)),
        "png_bytes": np.array(files, object),
    }
    faults = compare_outputs(answer, answer, FLOAT32, lambda x: None).faults
    wanted = f"png_bytes: number {place} is not the map of the answer"
    assert faults == (() if is_right else (wanted,))


def test_kinds_of_outputs(models):
    for output, model in models.items():
        assert name_output(model) == output
        pixels = keras.Input(model.input_shape[1:])
        scaled = keras.layers.Rescaling(1 / 127.5, -1)(pixels)
        assert name_output(keras.Model(pixels, model(scaled))) == output
    several = make_dense(DenseConfig(2, activation="sigmoid"))
    assert name_output(several) == "features"


KNOWN = KnownScore("energy", 0.0)


@pytest.mark.parametrize(
    ("output", "choices", "match"),
    [
        ("pixel_logits", {"top": 3}, "`top` is for a classifier of images"),
        ("pixel_logits", {"activation": "sigmoid"}, "`activation` is for a cl"),
        ("pixel_logits", {"thresholds": [0.5] * 5}, "`thresholds` .*pixel_log"),
        ("pixel_logits", {"known": KNOWN}, "`known` is for a model that"),
        ("pixel_logits", {"use_attention": True}, "`use_attention` needs a V"),
        ("pixel_logits", {"class_names": ["a"]}, "`class_names` must have a"),
        ("pixel_logits", {"larger_depths": "far"}, "`larger_depths` is for"),
        ("pixel_logits", {"output": "depths"}, "`output` .* where C is 1"),
        ("pixel_logits", {"output": "logits"}, "`output` must be 'features'"),
        ("depths", {"class_names": ["a"]}, "`class_names` .*returns depths"),
        ("depths", {"larger_depths": "up"}, "`larger_depths` must be one of"),
        ("depths", {"output": "pixel_logits"}, "`output` .* 2 to 65,536"),
    ],
)
def test_what_only_classifiers_of_images_have(
    models, images, tmp_path, output, choices, match
):
    with pytest.raises(ValueError, match=match):
        export_file(
            models[output], tmp_path / "1", images, serving=Serving(**choices)
        )
    assert not list(tmp_path.iterdir())


def test_a_model_tells_its_classes(models):
    assert Serving().for_model(models["pixel_logits"]).class_names is None
    model = make_dense(DenseConfig(5, class_names=NAMES))
    assert Serving().for_model(model).class_names == tuple(NAMES)
    other = Serving(class_names=[*"abcde"])
    assert other.for_model(model).class_names == [*"abcde"]
    near = Serving(larger_depths="near")
    assert near.for_model(models["depths"]).larger_depths == "near"
    relative = make_dense(DenseConfig(1, activation="relu"))
    assert Serving().for_model(relative).larger_depths == "near"
    unknown = keras.Sequential(
        [keras.Input((4, 4, 3)), keras.layers.Conv2D(1, 1)]
    )
    assert Serving(output="depths").for_model(unknown).larger_depths is None


def test_large_maps_of_many_images_are_left_out(
    models, images, tmp_path, monkeypatch
):
    """The report says how many were compared."""
    height, width = IMAGE_SIZE
    monkeypatch.setattr(contract, "MOST_NUMBERS", 4 * height * width * 5 - 1)
    model = models["pixel_logits"]
    assert export_file(model, tmp_path / "1", images).num_images == 3
    monkeypatch.setattr(contract, "MOST_NUMBERS", 1)
    assert export_file(model, tmp_path / "2", images).num_images == 1


def test_a_model_within_another(models, images, tmp_path):
    """Behind a layer that scales the pixels itself."""
    inner = models["pixel_logits"]
    pixels = keras.Input(inner.input_shape[1:])
    scaled = keras.layers.Rescaling(1 / 127.5, -1)(pixels)
    whole = keras.Model(pixels, inner(scaled))
    photos = np.float32(127.5) * (images[:4] + 1)
    report = export_file(whole, tmp_path / "1", photos)
    assert report.mean_iou == 1
    assert read_description(tmp_path / "1")["output"] == "pixel_logits"


def test_mixed_precision(images, tmp_path):
    """The float32 copy is still a model with an answer for each pixel."""
    model = make_dense(DenseConfig(3), "mixed_bfloat16")
    pytest.importorskip("tf2onnx")
    report = export_file(model, tmp_path / "model.onnx", images[:4])
    assert report.mean_iou == 1
    report = export_file(model, tmp_path / "1", images[:4])
    assert report.mean_iou > 0.95
