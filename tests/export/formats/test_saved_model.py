import dataclasses
import io
import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing, preprocess_input, read_image
from keras_vit.export import (
    DisagreementError,
    Serving,
    export_saved_model,
)
from keras_vit.preprocessing.description import from_range
from tests.export.conftest import make_model


@pytest.fixture(scope="module")
def saved_model(model, images, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("saved_model") / "1")
    return export_saved_model(model, path, images)


def test_mixed_precision_saved_model_answers_in_float32(images, tmp_path):
    model = make_model(dtype="mixed_bfloat16", num_classes=0, depth=1)
    report = export_saved_model(model, str(tmp_path / "1"), images)
    serve = tf.saved_model.load(report.path).signatures["serving_default"]
    assert serve(images=tf.constant(images))["features"].dtype == tf.float32


def test_saved_model_can_be_read_by_the_server(saved_model):
    assert pathlib.Path(saved_model.path).stat().st_mode & 0o777 == 0o755


def test_model_without_head_answers_features(images, tmp_path):
    model = make_model(num_classes=0, representation_size=5, depth=1)
    report = export_saved_model(model, tmp_path / "1", images)
    serve = tf.saved_model.load(report.path).signatures["serving_default"]
    assert list(serve(images=tf.constant(images))) == ["features"]


def test_outputs_of_each_pixel_are_exported(images, tmp_path):
    """Of a segmenter: no classes of an image are ranked."""
    backbone = make_model(num_classes=0, depth=1)
    pixels = keras.Input(backbone.input_shape[1:])
    (x,) = backbone.features(pixels)
    x = keras.layers.UpSampling2D(2)(x)
    model = keras.Model(pixels, keras.layers.Conv2D(11, 1)(x))
    report = export_saved_model(model, tmp_path / "1", images)
    loaded = tf.saved_model.load(report.path)
    for name in ("serving_default", "features"):
        ((key, found),) = loaded.signatures[name](tf.constant(images)).items()
        assert key == "features"
        np.testing.assert_allclose(found, model(images), atol=1e-5)
    with pytest.raises(ValueError, match="`output` must be.*each pixel"):
        export_saved_model(
            model, tmp_path / "2", images, Serving(output="logits")
        )


OF_FOUR = Preprocessing(((0.5,) * 4, (0.5,) * 4))
NAMES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


@pytest.fixture(scope="module")
def named(model, images, tmp_path_factory):
    """Return the signatures of a model with names, all classes listed."""
    path = tmp_path_factory.mktemp("named") / "1"
    serving = Serving(class_names=NAMES, top=99, use_attention=True)
    export_saved_model(model, path, images, serving)
    loaded = tf.saved_model.load(str(path))
    # Without its module a signature loses the weights.
    return loaded.signatures, loaded


def encode(pixels, **choices):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, **choices)
    return file.getvalue()


def classify(named, files):
    serve = named[0]["serve_bytes"]
    return {
        name: answer.numpy()
        for name, answer in serve(image_bytes=tf.constant(files)).items()
    }


def softmax(logits):
    scores = np.exp(logits - np.max(logits, -1, keepdims=True))
    return scores / np.sum(scores, -1, keepdims=True)


def test_pixels_are_scaled_as_preprocess_input_does(named, model):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 24, 3))
    answers = named[0]["serve_uint8"](images=tf.constant(pixels, tf.uint8))
    expected = model.predict_on_batch(preprocess_input(pixels))
    np.testing.assert_allclose(answers["logits"], expected, atol=1e-5)


def test_files_of_all_sizes_and_kinds_in_one_request(named, model):
    """Decoded by Pillow, and resized by hand, they are answered the same."""
    random = np.random.default_rng(3)
    pixels = [
        random.integers(0, 256, shape, "uint8")
        for shape in [(32, 24, 3), (64, 48, 3), (96, 72, 3)]
    ]
    files = [
        encode(pixels[0], format="PNG"),
        encode(pixels[1], format="PNG"),
        encode(pixels[2], format="BMP"),
    ]
    # Antialiased: each of the small pixels is a mean with triangular weights.
    images = [pixels[0]] + [
        tf.image.resize(x, (32, 24), antialias=True).numpy() for x in pixels[1:]
    ]
    expected = softmax(
        model.predict_on_batch(preprocess_input(np.stack(images)))
    )
    answers = classify(named, files)
    order = np.argsort(-expected, -1)
    np.testing.assert_array_equal(
        answers["labels"].astype(str), np.array(NAMES)[order]
    )
    np.testing.assert_allclose(
        answers["probabilities"],
        np.take_along_axis(expected, order, -1),
        atol=1e-5,
    )


def test_image_files_must_get_the_answers_of_their_images(
    shallow, tmp_path, monkeypatch
):
    """The images are read by Pillow; a signature that reads wrong is found."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (3, 32, 24, 3), "uint8")
    images = pixels.astype("float32") / 127.5 - 1
    files = {i: encode(pixels[i], format="PNG") for i in (0, 2)}
    module = sys.modules[export_saved_model.__module__]
    decode = module.decode_inputs
    report = export_saved_model(
        shallow, tmp_path / "1", images, files=files | {1: b"none"}
    )
    [warning] = report.warnings
    assert warning.startswith("serve_bytes cannot read the file of image 1: ")
    # It also reads wrong what it is compared with.
    monkeypatch.setattr(
        module, "decode_inputs", lambda *args: decode(*args) / 127.5 - 1
    )
    export_saved_model(shallow, tmp_path / "2", images)
    with pytest.raises(DisagreementError, match="file of image 0: "):
        export_saved_model(shallow, tmp_path / "3", images, files=files)


def test_images_of_another_scale_are_found_out(images, tmp_path):
    vit = make_model(depth=1)
    pixels = keras.Input(vit.input_shape[1:])
    scaled = keras.layers.Rescaling(1 / 127.5, -1)(pixels)
    model = keras.Model(pixels, vit(scaled))
    raw = 127.5 * (images + 1)
    twice = Serving(preprocessing=Preprocessing("vit"))
    with pytest.raises(DisagreementError, match="`preprocessing` says"):
        export_saved_model(model, tmp_path / "1", raw, twice)
    once = Serving(preprocessing=Preprocessing(from_range(0, 255)))
    report = export_saved_model(model, tmp_path / "2", raw, once)
    assert not report.faults


def test_photos_are_turned_upright(named):
    pixels = np.zeros((32, 24, 3), "uint8")
    pixels[:16] = 255  # Bright above.
    exif = Image.Exif()
    exif[0x0112] = 6  # Turn clockwise by a quarter to see it upright.
    lying = np.ascontiguousarray(np.rot90(pixels))
    turned = encode(lying, format="JPEG", quality=100, exif=exif)
    plain = encode(lying, format="JPEG", quality=100)
    answers = classify(
        named,
        [encode(pixels, format="JPEG", quality=100), turned, plain],
    )["probabilities"]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-3)
    assert np.max(np.abs(answers[0] - answers[2])) > 1e-2


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"aGVsbG8=", b"\xff\xd8"])
def test_an_invalid_image_fails_alone(named, content):
    good = encode(np.zeros((32, 24, 3), "uint8"), format="PNG")
    before = classify(named, [good])
    with pytest.raises(tf.errors.InvalidArgumentError):
        classify(named, [good, content])
    after = classify(named, [good])
    np.testing.assert_array_equal(
        before["probabilities"], after["probabilities"]
    )


def test_the_reading_of_the_model_is_used(shallow, images, tmp_path):
    """A reader, a range and an activation of its own."""
    model = shallow
    serving = Serving(
        read_image=lambda content: tf.fill(
            (32, 24, 3), tf.cast(tf.strings.length(content), tf.float32) / 1e3
        ),
        preprocessing=Preprocessing(from_range(0, 2)),
        activation="sigmoid",
        top=2,
    )
    export_saved_model(model, tmp_path / "1", images, serving)
    loaded = tf.saved_model.load(str(tmp_path / "1")).signatures
    answers = loaded["serve_bytes"](image_bytes=tf.constant([b"x" * 500]))
    logits = model.predict_on_batch(np.full((1, 32, 24, 3), 0.5, "float32"))
    order = np.argsort(-logits[0])[:2]
    np.testing.assert_allclose(
        answers["probabilities"][0],
        1 / (1 + np.exp(-logits[0][order])),
        atol=1e-5,
    )
    assert [int(x) for x in answers["labels"][0].numpy()] == list(order)
    pixels = np.full((1, 32, 24, 3), 255, "uint8")
    answers = loaded["serve_uint8"](images=tf.constant(pixels))["logits"]
    expected = model.predict_on_batch(np.full(pixels.shape, 2.0, "float32"))
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_features_are_what_goes_into_the_head(named, model, images):
    answers = named[0]["features"](images=tf.constant(images[:2]))["features"]
    head = model.get_layer("predictions")
    np.testing.assert_allclose(
        answers @ head.kernel + head.bias,
        model.predict_on_batch(images[:2]),
        atol=1e-5,
    )


def test_attention_of_a_file_is_that_of_its_image(named, images):
    """Its images are those that the model receives, from 0 to 1."""
    pixels = np.round((images + 1) * 127.5).astype("uint8")
    files = [tf.io.encode_png(image).numpy() for image in pixels]
    found = named[0]["attention_bytes"](image_bytes=tf.constant(files))
    np.testing.assert_allclose(found["images"], pixels / 255, atol=1e-6)
    scaled = tf.constant(found["images"] * 2 - 1)
    expected = named[0]["attention"](images=scaled)["rollout"]
    np.testing.assert_allclose(found["rollout"], expected, atol=1e-6)


def test_attention_sums_to_one_with_the_class_token(named, images):
    rollout = named[0]["attention"](images=tf.constant(images))["rollout"]
    sums = np.sum(rollout, (1, 2))
    assert np.min(rollout) > 0 and np.all(sums < 1) and np.all(sums > 0.5)


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"class_names": ["a", "b"]}, "2 names for 7 classes"),
        ({"top": 0}, "`top` must be 1 or more"),
        ({"preprocessing": OF_FOUR}, "Received: 4 for"),
        ({"activation": "relu"}, "softmax"),
    ],
)
def test_bad_choices_are_refused(model, images, tmp_path, choices, match):
    with pytest.raises(ValueError, match=match):
        export_saved_model(model, tmp_path / "1", images, Serving(**choices))
    assert not list(tmp_path.iterdir())


def test_other_models_of_keras(tmp_path):
    """Two channels: no image file has them. No head: nothing to name."""
    model = keras.Sequential(
        [keras.Input((6, 4, 2)), keras.layers.GlobalAveragePooling2D()]
    )
    images = np.ones((2, 6, 4, 2), "float32")
    export_saved_model(model, tmp_path / "1", images)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    assert sorted(loaded.signatures) == [
        "features",
        "serve_uint8",
        "serving_default",
    ]
    for serving, match in [
        (Serving(class_names=["a", "b"]), "with a classifier"),
        (Serving(use_attention=True), "needs a VisionTransformer"),
    ]:
        with pytest.raises(ValueError, match=match):
            export_saved_model(model, tmp_path / "2", images, serving)


def test_labels_of_a_wrong_order_are_found_out(
    shallow, images, tmp_path, monkeypatch
):
    """Those of the signature, with the probabilities right."""
    module = sys.modules[export_saved_model.__module__]
    make = module.make_endpoints
    monkeypatch.setattr(
        module,
        "make_endpoints",
        lambda model, serving: make(
            model, dataclasses.replace(serving, class_names=NAMES[::-1])
        ),
    )
    serving = Serving(class_names=NAMES, top=1)
    with pytest.raises(DisagreementError, match="serve_bytes: labels"):
        export_saved_model(shallow, tmp_path / "1", images, serving)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_names_classes(dtype, images, tmp_path):
    model = make_model(dtype=dtype, depth=1)
    serving = Serving(class_names=NAMES, use_attention=True)
    export_saved_model(model, tmp_path / "1", images, serving)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    for serve in loaded.signatures.values():
        for output in serve.structured_outputs.values():
            assert output.dtype in (tf.float32, tf.string)


@pytest.mark.parametrize(
    "settings",
    [
        Preprocessing("imagenet", "shortest", "bicubic", 0.8),
        Preprocessing("clip", "squash", "bicubic"),
        Preprocessing("satellite", "squash", "bilinear", 0.8),
        Preprocessing("zero_one", "shortest"),
    ],
    ids=str,
)
def test_requests_are_read_as_the_model_states(images, tmp_path, settings):
    model = make_model(depth=1, preprocessing=settings)
    report = export_saved_model(
        model, tmp_path / "1", images, Serving(use_attention=True, top=7)
    )
    assert not report.faults
    loaded = tf.saved_model.load(str(tmp_path / "1")).signatures
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (2, 32, 24, 3), "uint8")
    answers = loaded["serve_uint8"](images=tf.constant(pixels))["logits"]
    expected = model(preprocess_input(pixels, "channels_last", model=model))
    np.testing.assert_allclose(answers, expected, atol=1e-5)
    # A photo of another size.
    small = random.integers(0, 256, (7, 9, 3), "uint8")
    photo = np.asarray(Image.fromarray(small).resize((70, 90)))
    (tmp_path / "photo.png").write_bytes(encode(photo, format="PNG"))
    answers = classify((loaded,), [encode(photo, format="PNG")])
    pixels = read_image(tmp_path / "photo.png", model=model)[None]
    logits = model(preprocess_input(pixels, "channels_last", model=model))
    expected = keras.ops.softmax(logits)[0]
    order = [int(label) for label in answers["labels"][0]]
    # Pillow rounds its pixels.
    np.testing.assert_allclose(
        answers["probabilities"][0], np.take(expected, order), atol=0.01
    )
    # What the attention is drawn on are pixels from 0 to 1.
    serve = loaded["attention_bytes"]
    shown = serve(image_bytes=tf.constant([encode(photo, format="PNG")]))
    np.testing.assert_allclose(
        255 * shown["images"][0], pixels[0], atol=4, rtol=0
    )
