"""TFLite files that take uint8 pixels and halve them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.interpreter import Interpreter
from sklearn.datasets import load_sample_images

from keras_vit import Preprocessing
from keras_vit.export import (
    ExportOptions,
    Serving,
    export_model,
    export_tflite,
    read_description,
)
from keras_vit.export.formats.tflite import (
    FORMAT,
    HALVINGS,
    PixelInput,
    find_pixel_input,
    start,
)
from keras_vit.preprocessing.description import (
    central_crop_step,
    resize_small_step,
    resize_step,
)

SIZE = (32, 24)
PHOTOS = load_sample_images().images


@pytest.fixture(scope="module", params=[*HALVINGS, None], ids=str)
def pixels(request):
    return PixelInput("zero_one", request.param)


@pytest.fixture(scope="module")
def path(shallow, images, pixels, tmp_path_factory):
    path = tmp_path_factory.mktemp("pixels") / "model.tflite"
    step = resize_step(SIZE, pixels.method or "bilinear")
    export_tflite(
        shallow,
        path,
        (images + 1) / 2,
        "float32",
        takes_pixels=True,
        serving=Serving(
            preprocessing=Preprocessing("zero_one"),
            read_image=lambda encoded: encoded,
            image_steps=[step],
        ),
    )
    return str(path)


def answer(path, image):
    [output] = Interpreter(path).get_signature_runner()(images=image).values()
    return output


def test_the_file_resizes_as_tensorflow_does(path, pixels, shallow):
    factor = pixels.pixels_per_side
    size = [side * factor for side in SIZE]
    choices = {
        "antialias": {"antialias": True},
        "area": {"method": "area"},
        "bicubic": {"method": "bicubic", "antialias": True},
    }
    for photo in PHOTOS:
        image = tf.image.resize(photo, size, antialias=True)
        image = tf.cast(tf.round(image), tf.uint8)[None]
        scaled = tf.image.resize(image, SIZE, **choices.get(pixels.method, {}))
        scaled = np.clip(scaled, 0, 255)
        expected = shallow.predict_on_batch(scaled / 255)
        found = answer(path, image.numpy())
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_file_takes_uint8_and_no_other_size(path, pixels):
    interpreter = Interpreter(path)
    [details] = interpreter.get_input_details()
    shape = (1, *(side * pixels.pixels_per_side for side in SIZE), 3)
    assert details["dtype"] == np.uint8 and (*details["shape"],) == shape
    with pytest.raises((ValueError, RuntimeError), match="[Dd]imen|XNNPack"):
        answer(path, np.zeros((1, 48, 32, 3), "uint8"))


def test_pixels_may_be_written_as_signed_bytes(path, pixels):
    """As Kotlin does, which has no unsigned bytes."""
    model = CompiledModel.from_file(path)
    inputs, outputs = (
        model.create_input_buffers(0),
        model.create_output_buffers(0),
    )
    shape = (1, *(side * pixels.pixels_per_side for side in SIZE), 3)
    image = np.random.default_rng(0).integers(0, 256, shape, "uint8")
    inputs[0].write(image.view("int8").ravel())
    model.run_by_index(0, inputs, outputs)
    found = outputs[0].read(7, np.float32)
    np.testing.assert_allclose(found, answer(path, image)[0], atol=1e-5)


@pytest.mark.parametrize(
    "steps, method",
    [
        ([resize_step(SIZE, "antialias")], "antialias"),
        ([resize_small_step(36), central_crop_step(SIZE)], "area"),
        (
            [
                resize_step(SIZE, "bicubic", "resize_to_cover"),
                central_crop_step(SIZE),
            ],
            "bicubic",
        ),
        # Without antialiasing, the model saw single pixels.
        ([resize_step(SIZE, "bilinear")], None),
        ([resize_small_step(36), resize_step(SIZE, "bilinear")], None),
        (None, None),
    ],
)
def test_the_method_is_that_of_the_preprocessing(steps, method):
    assert find_pixel_input(steps, "vit").method == method


@pytest.fixture(scope="module")
def exported(shallow, images, tmp_path_factory):
    return export_model(
        shallow,
        tmp_path_factory.mktemp("bundle"),
        images,
        ["tflite"],
        name="pixels",
        serving=Serving(
            read_image=lambda encoded: encoded,
            image_steps=[resize_small_step(36), central_crop_step(SIZE)],
        ),
        tflite_takes_pixels=True,
        threads=(),
        verbose=False,
    )


def test_an_export_describes_its_input(exported):
    [agreement] = exported.agreements
    assert not agreement.faults
    description = read_description(agreement.path)
    assert description["input"] == {
        "height": 64,
        "width": 48,
        "channels": 3,
        "dtype": "uint8",
    }
    assert description["mean"] is None
    steps = [resize_small_step(72), central_crop_step((64, 48))]
    assert description["image_steps"] == steps
    # Its latency can be measured.
    assert start(agreement.path, (1, *SIZE, 3), 1)().shape == (1, 7)


def test_a_photo_gets_the_answer_of_the_model(exported, shallow):
    """From the steps of the description, with 8 bits between them."""
    [agreement] = exported.agreements
    for photo in PHOTOS:
        both = []
        for size, crop in ((36, SIZE), (72, (64, 48))):
            sides = np.array(photo.shape[:2])
            target = np.round(sides * size / sides.min()).astype(int)
            image = tf.image.resize(photo, target, method="area").numpy()
            top, left = (target - crop) // 2
            both.append(image[top : top + crop[0], left : left + crop[1]])
        expected = shallow.predict_on_batch(both[0][None] / 127.5 - 1)
        found = answer(agreement.path, np.rint(both[1])[None].astype("uint8"))
        probabilities = [keras.ops.softmax(x)[0] for x in (found, expected)]
        np.testing.assert_allclose(*probabilities, atol=0.01)


def test_quantizations_with_calibration_are_refused():
    options = ExportOptions(
        tflite_takes_pixels=True, tflite_quantizations=["int8"]
    )
    with pytest.raises(ValueError, match="`tflite_takes_pixels` is for the"):
        FORMAT.check(options, True)
