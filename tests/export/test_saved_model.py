import dataclasses
import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing, preprocess_input, read_image
from keras_vit.export import DisagreementError, Serving, export_file
from keras_vit.export.formats import saved_model
from keras_vit.preprocessing.description import from_range, resize_step
from tests.export.conftest import NAMES, make_model


@pytest.fixture(scope="module")
def named(model, images, tmp_path_factory):
    """Return the signatures of a model with names, all classes listed."""
    path = tmp_path_factory.mktemp("named") / "1"
    serving = Serving(class_names=NAMES, top=99, use_attention=True)
    export_file(model, path, images, serving=serving)
    assert path.stat().st_mode & 0o777 == 0o755  # The server reads it.
    loaded = tf.saved_model.load(str(path))
    # Without its module a signature loses the weights.
    return loaded.signatures, loaded


def encode(pixels, **choices):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, **choices)
    return file.getvalue()


def classify(signatures, files):
    found = signatures["serve_bytes"](image_bytes=tf.constant(files))
    return {name: x.numpy() for name, x in found.items()}


def softmax(logits):
    scores = np.exp(logits - np.max(logits, -1, keepdims=True))
    return scores / np.sum(scores, -1, keepdims=True)


def test_files_of_all_sizes_and_kinds_in_one_request(named, model):
    """Decoded by Pillow, and resized by hand, they are answered the same."""
    random = np.random.default_rng(3)
    pixels = [
        random.integers(0, 256, shape, "uint8")
        for shape in [(32, 24, 3), (64, 48, 3), (96, 72, 3)]
    ]
    kinds = ["PNG", "PNG", "BMP"]
    files = [encode(x, format=kind) for x, kind in zip(pixels, kinds)]
    # Antialiased: each of the small pixels is a mean with triangular weights.
    images = [pixels[0]] + [
        tf.image.resize(x, (32, 24), antialias=True).numpy() for x in pixels[1:]
    ]
    expected = softmax(
        model.predict_on_batch(preprocess_input(np.stack(images)))
    )
    answers = classify(named[0], files)
    order = np.argsort(-expected, -1)
    labels = [[x.decode() for x in row] for row in answers["labels"]]
    np.testing.assert_array_equal(labels, np.array(NAMES)[order])
    expected = np.take_along_axis(expected, order, -1)
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)


def test_photos_are_turned_upright(named):
    pixels = np.zeros((32, 24, 3), "uint8")
    pixels[:16] = 255  # Bright above.
    exif = Image.Exif()
    exif[0x0112] = 6  # Turn clockwise by a quarter to see it upright.
    lying = np.ascontiguousarray(np.rot90(pixels))
    plain, turned = (
        encode(lying, format="JPEG", quality=100, **choices)
        for choices in ({}, {"exif": exif})
    )
    upright = encode(pixels, format="JPEG", quality=100)
    answers = classify(named[0], [upright, turned, plain])["probabilities"]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-3)
    assert np.max(np.abs(answers[0] - answers[2])) > 1e-2


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"aGVsbG8=", b"\xff\xd8"])
def test_an_invalid_image_fails_alone(named, content):
    good = encode(np.zeros((32, 24, 3), "uint8"), format="PNG")
    before = classify(named[0], [good])["probabilities"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        classify(named[0], [good, content])
    after = classify(named[0], [good])["probabilities"]
    np.testing.assert_array_equal(before, after)


def test_features_are_what_goes_into_the_head(named, model, images):
    answers = named[0]["features"](images=tf.constant(images[:2]))["features"]
    head = model.get_layer("predictions")
    np.testing.assert_allclose(
        answers @ head.kernel + head.bias,
        model.predict_on_batch(images[:2]),
        atol=1e-5,
    )


def test_attention_sums_to_one_with_the_class_token(named, images):
    rollout = named[0]["attention"](images=tf.constant(images))["rollout"]
    sums = np.sum(rollout, (1, 2))
    assert np.min(rollout) > 0 and np.all(sums < 1) and np.all(sums > 0.5)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_answers_in_float32(dtype, images, tmp_path):
    model = make_model(dtype=dtype, depth=1)
    serving = Serving(class_names=NAMES, use_attention=True)
    export_file(model, tmp_path / "1", images, serving=serving)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    for serve in loaded.signatures.values():
        for output in serve.structured_outputs.values():
            assert output.dtype in (tf.float32, tf.string)


# Files are read by the signature, and by Pillow and NumPy for Keras.


def scale_first(*layers):
    """Return a model that begins with layers of its own."""
    vit = make_model(depth=1)
    x = pixels = keras.Input(vit.input_shape[1:])
    for layer in layers:
        x = layer(x)
    return keras.Model(pixels, vit(x))


def test_a_model_that_scales_pixels_is_not_normalised_twice(images, tmp_path):
    """Though all that the export is told says so, and the images as well."""
    model = scale_first(keras.layers.Rescaling(1 / 127.5, -1))
    twice = Serving(preprocessing=Preprocessing("vit"))
    with pytest.raises(DisagreementError, match="serve_bytes: prob"):
        export_file(model, tmp_path / "1", images, serving=twice)
    raw = 127.5 * (images + 1)
    with pytest.raises(DisagreementError, match="`preprocessing` says"):
        export_file(model, tmp_path / "1", raw, serving=twice)
    assert not export_file(model, tmp_path / "2", raw).faults
    serve = tf.saved_model.load(str(tmp_path / "2")).signatures["serve_uint8"]
    pixels = np.rint(raw).astype("uint8")
    np.testing.assert_allclose(
        serve(images=tf.constant(pixels))["logits"],
        model.predict_on_batch(pixels.astype("float32")),
        atol=1e-5,
    )


@pytest.mark.parametrize("fault", ["twice", "upright", "size"])
def test_a_signature_that_reads_files_wrong_is_found(
    fault, shallow, images, tmp_path, monkeypatch
):
    read = saved_model.decode_inputs

    def read_wrong(image_bytes, image_shape, serving):
        if fault == "size":
            steps = [resize_step(image_shape[:2], "bilinear")]
            serving = dataclasses.replace(serving, image_steps=steps)
        found = read(image_bytes, image_shape, serving)
        if fault == "twice":
            return found / 127.5 - 1
        return found[:, ::-1] if fault == "upright" else found

    monkeypatch.setattr(saved_model, "decode_inputs", read_wrong)
    photo = np.asarray(Image.effect_noise((90, 70), 80).convert("RGB"))
    with pytest.raises(DisagreementError, match="serve_bytes|image files"):
        export_file(
            shallow,
            tmp_path / "1",
            images,
            files=[encode(photo, format="PNG")],
        )
    assert not list(tmp_path.iterdir())


def test_files_of_the_user_are_compared(shallow, images, tmp_path):
    random = np.random.default_rng(0)
    photo = random.integers(0, 256, (90, 61, 3), "uint8")
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [
        encode(photo, format="PNG"),
        b"none",
        encode(photo, format="JPEG", exif=exif),
    ]
    report = export_file(shallow, tmp_path / "1", images, files=files)
    [warning] = report.warnings
    assert warning.startswith("serve_bytes cannot read file 1: ")
    assert not report.faults


def test_labels_of_a_wrong_order_are_found_out(
    shallow, images, tmp_path, monkeypatch
):
    """Those of the signature, with the probabilities right."""
    make = saved_model.make_endpoints
    monkeypatch.setattr(
        saved_model,
        "make_endpoints",
        lambda model, serving: make(
            model, dataclasses.replace(serving, class_names=NAMES[::-1])
        ),
    )
    serving = Serving(class_names=NAMES, top=1)
    with pytest.raises(DisagreementError, match="serve_bytes: labels"):
        export_file(shallow, tmp_path / "1", images, serving=serving)


@pytest.mark.parametrize(
    "settings",
    [
        Preprocessing("imagenet", "shortest", "bicubic", 0.8),
        Preprocessing("satellite", "squash", "bilinear", 0.8),
    ],
    ids=str,
)
def test_requests_are_read_as_the_model_states(images, tmp_path, settings):
    model = make_model(depth=1, preprocessing=settings)
    report = export_file(
        model,
        tmp_path / "1",
        images,
        serving=Serving(use_attention=True, top=7),
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
    content = encode(photo, format="PNG")
    (tmp_path / "photo.png").write_bytes(content)
    answers = classify(loaded, [content])
    pixels = read_image(tmp_path / "photo.png", model=model)[None]
    logits = model(preprocess_input(pixels, "channels_last", model=model))
    expected = keras.ops.softmax(logits)[0]
    order = [int(label) for label in answers["labels"][0]]
    # Pillow rounds its pixels.
    np.testing.assert_allclose(
        answers["probabilities"][0], np.take(expected, order), atol=0.01
    )
    # What the attention is drawn on are pixels from 0 to 1.
    shown = loaded["attention_bytes"](image_bytes=tf.constant([content]))
    found = 255 * shown["images"][0]
    np.testing.assert_allclose(found, pixels[0], atol=4, rtol=0)


def test_the_choices_of_serving_are_used(shallow, images, tmp_path):
    """Operations, a range and an activation of its own."""
    serving = Serving(
        image_steps=[resize_step((32, 24), "area")],
        preprocessing=Preprocessing(from_range(0, 2)),
        activation="sigmoid",
        top=2,
    )
    images = images / 2 + 1
    export_file(shallow, tmp_path / "1", images, serving=serving)
    loaded = tf.saved_model.load(str(tmp_path / "1")).signatures
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (96, 48, 3), "uint8")
    answers = classify(loaded, [encode(pixels, format="PNG")])
    area = pixels.reshape(32, 3, 24, 2, 3).mean((1, 3))[None] / 127.5
    logits = shallow.predict_on_batch(area.astype("float32"))[0]
    order = np.argsort(-logits)[:2]
    expected = 1 / (1 + np.exp(-logits[order]))
    found = answers["probabilities"][0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [int(x) for x in answers["labels"][0]] == list(order)


# Other models.


def test_outputs_of_each_pixel_are_exported(images, tmp_path):
    """Of a segmenter: no classes of an image are ranked."""
    backbone = make_model(num_classes=0, depth=1)
    pixels = keras.Input(backbone.input_shape[1:])
    (x,) = backbone.features(pixels)
    x = keras.layers.UpSampling2D(2)(x)
    model = keras.Model(pixels, keras.layers.Conv2D(11, 1)(x))
    report = export_file(model, tmp_path / "1", images)
    loaded = tf.saved_model.load(report.path)
    for name in ("serving_default", "features"):
        ((key, found),) = loaded.signatures[name](tf.constant(images)).items()
        assert key == "features"
        np.testing.assert_allclose(found, model(images), atol=1e-5)
    serving = Serving(output="logits")
    with pytest.raises(ValueError, match="`output` must be.*each pixel"):
        export_file(model, tmp_path / "2", images, serving=serving)


def test_a_model_that_no_file_fits(tmp_path):
    """Two channels: no image file has them. No head: nothing to name."""
    model = keras.Sequential(
        [keras.Input((6, 4, 2)), keras.layers.GlobalAveragePooling2D()]
    )
    images = np.ones((2, 6, 4, 2), "float32")
    export_file(model, tmp_path / "1", images, files=[b"none"])
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    names = ["features", "serve_uint8", "serving_default"]
    assert sorted(loaded.signatures) == names
    serving = Serving(class_names=["a", "b"])
    with pytest.raises(ValueError, match="with a classifier"):
        export_file(model, tmp_path / "2", images, serving=serving)
