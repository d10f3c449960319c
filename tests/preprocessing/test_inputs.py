import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import Preprocessing, VisionTransformer, preprocess_input
from keras_vit.preprocessing import NORMALIZATIONS
from tests.tiny import tiny_config


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("uint8", "float32"),
        ("int64", "float32"),
        ("float16", "float16"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_pixels_become_minus_one_to_one_and_floats_keep_their_type(
    dtype, expected
):
    pixels = np.array([[0, 51, 204, 255]], dtype)
    before = pixels.copy()
    y = preprocess_input(pixels)
    assert isinstance(y, np.ndarray) and y.dtype == expected
    np.testing.assert_allclose(y, [[-1, -0.6, 0.6, 1]], atol=1e-3)
    # That of keras.applications scales float arrays in place.
    assert not np.shares_memory(y, pixels)
    np.testing.assert_array_equal(pixels, before)
    of_list = preprocess_input(pixels.tolist())
    np.testing.assert_allclose(of_list, [[-1, -0.6, 0.6, 1]], atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("uint8", "float32"),
        ("float32", "float32"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_tensors_stay_tensors(dtype, expected):
    y = preprocess_input(ops.cast(np.array([0, 51, 255]), dtype))
    assert ops.is_tensor(y)
    assert keras.backend.standardize_dtype(y.dtype) == expected
    y = ops.convert_to_numpy(ops.cast(y, "float32"))
    np.testing.assert_allclose(y, [-1, -0.6, 1], atol=4e-3)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_works_in_a_functional_model(dtype):
    images = keras.Input((2, 2, 3), dtype=dtype)
    model = keras.Model(images, preprocess_input(images))
    pixels = np.full((1, 2, 2, 3), 255, dtype)
    y = ops.convert_to_numpy(model(pixels))
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, np.ones((1, 2, 2, 3)))


@pytest.mark.parametrize("mode", ["vit", "imagenet"])
def test_works_in_a_data_pipeline_on_every_backend(mode):
    tf = pytest.importorskip("tensorflow")
    pixels = np.array([[[[0, 51, 255]]]], "uint8")
    data = tf.data.Dataset.from_tensor_slices(pixels)
    data = data.map(lambda x: preprocess_input(x, mode=mode))
    (y,) = list(data.as_numpy_iterator())
    assert y.dtype == "float32"
    expected = preprocess_input(pixels[0], mode=mode)
    np.testing.assert_allclose(y, expected)
    eager = preprocess_input(tf.constant(pixels, "float16"), mode=mode)
    assert tf.is_tensor(eager) and eager.dtype == tf.float16

    @tf.function(input_signature=[tf.TensorSpec(None, "uint8")])
    def call(x):  # Of unknown shape.
        return preprocess_input(x, mode=mode)

    np.testing.assert_allclose(call(pixels)[0], expected, rtol=1e-6)


# What torchvision's Normalize makes of a pixel of 0, 51 and 255, computed by
# hand: (x / 255 - mean) / deviation, with the numbers of timm's constants.
NORMALIZED = {
    "vit": [-1.0, -0.6, 1.0],
    "imagenet": [-0.485 / 0.229, (0.2 - 0.456) / 0.224, (1 - 0.406) / 0.225],
    "clip": [
        -0.48145466 / 0.26862954,
        (0.2 - 0.4578275) / 0.26130258,
        (1 - 0.40821073) / 0.27577711,
    ],
    "zero_one": [0.0, 0.2, 1.0],
    "satellite": [-0.43 / 0.213, (0.2 - 0.411) / 0.156, (1 - 0.296) / 0.143],
}


def test_every_mode_is_checked():
    assert set(NORMALIZED) == set(NORMALIZATIONS)


@pytest.mark.parametrize("kind", [np.asarray, ops.convert_to_tensor])
@pytest.mark.parametrize("mode", NORMALIZED)
def test_modes(mode, kind):
    pixels = np.array([[[[0, 51, 255]]]], "uint8")
    expected = np.array(NORMALIZED[mode]).reshape(1, 1, 1, 3)
    for name in (mode, NORMALIZATIONS[mode]):
        y = preprocess_input(kind(pixels), "channels_last", name)
        y = ops.convert_to_numpy(y)
        np.testing.assert_allclose(y, expected, rtol=1e-5)
    first = np.moveaxis(pixels, -1, 1)
    y = preprocess_input(kind(first), "channels_first", mode)
    y = np.moveaxis(ops.convert_to_numpy(y), 1, -1)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    settings = Preprocessing(mode, "shortest", "bicubic", 0.9)
    model = VisionTransformer(tiny_config(preprocessing=settings))
    y = preprocess_input(pixels, "channels_last", model=model)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "x, choices, words",
    [
        (np.zeros(3), {"mode": "caffe"}, "`mode` must be one of 'vit'"),
        (np.zeros(3), {"mode": ((0, 0, 0), (1, 1))}, "`mode`"),
        (np.zeros(3), {"mode": ((0.0,), (-1.0,))}, "`mode`"),
        (np.zeros((2, 2, 1)), {"mode": "imagenet"}, "`x` must have 3 channels"),
        (
            np.zeros((3, 2, 2)),
            {"mode": "imagenet", "data_format": "channels_last"},
            "`x` must have 3 channels",
        ),
        (
            np.zeros((2, 3)),
            {"mode": "imagenet", "data_format": "channels_first"},
            "`x` must have 3 channels",
        ),
        (np.zeros(3), {"data_format": "NHWC"}, "`data_format`"),
        ("photo.jpg", {}, "`x` must be pixels. Received: "),
        (None, {}, "`x` must be pixels"),
        (np.array([1j]), {}, "`x` must be pixels"),
    ],
)
def test_what_does_not_fit_is_an_error(x, choices, words):
    with pytest.raises(ValueError, match=words):
        preprocess_input(x, **choices)


def test_only_a_vision_transformer_knows_its_images():
    model = VisionTransformer(tiny_config())
    with pytest.raises(ValueError, match="`mode` and `model` both"):
        preprocess_input(np.zeros(3), mode="vit", model=model)
    around = keras.Model(model.input, model.output)
    with pytest.raises(ValueError, match=r"`model` .*get_layer.*Functional"):
        preprocess_input(np.zeros((1, 2, 2, 3)), model=around)
