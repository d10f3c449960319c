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
    y = preprocess_input(pixels)
    assert isinstance(y, np.ndarray)
    assert y.dtype == expected
    np.testing.assert_allclose(y, [[-1, -0.6, 0.6, 1]], atol=1e-3)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_the_argument_is_left_as_it_is(dtype):
    # That of keras.applications scales float arrays in place.
    pixels = np.array([[0, 51, 255]], dtype)
    before = pixels.copy()
    y = preprocess_input(pixels)
    assert not np.shares_memory(y, pixels)
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("uint8", "float32"),
        ("int32", "float32"),
        ("float32", "float32"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_tensors_stay_tensors(dtype, expected):
    y = preprocess_input(ops.cast(np.array([0, 51, 255]), dtype))
    assert ops.is_tensor(y)
    assert keras.backend.standardize_dtype(y.dtype) == expected
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(y, "float32")), [-1, -0.6, 1], atol=4e-3
    )


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_works_in_a_functional_model(dtype):
    images = keras.Input((2, 2, 3), dtype=dtype)
    model = keras.Model(images, preprocess_input(images))
    pixels = np.full((1, 2, 2, 3), 255, dtype)
    y = ops.convert_to_numpy(model(pixels))
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, np.ones((1, 2, 2, 3)))


def test_lists_are_arrays():
    np.testing.assert_array_equal(preprocess_input([0, 255]), [-1.0, 1.0])


@pytest.mark.parametrize("mode", ["vit", "imagenet"])
def test_works_in_a_data_pipeline_on_every_backend(mode):
    tf = pytest.importorskip("tensorflow")
    pixels = np.array([[[[0, 51, 255]]]], "uint8")
    data = tf.data.Dataset.from_tensor_slices(pixels)
    data = data.map(lambda x: preprocess_input(x, mode=mode))
    (y,) = list(data.as_numpy_iterator())
    assert y.dtype == "float32"
    np.testing.assert_allclose(y, preprocess_input(pixels[0], mode=mode))
    eager = preprocess_input(tf.constant(pixels, "float16"), mode=mode)
    assert tf.is_tensor(eager) and eager.dtype == tf.float16


def test_works_on_tensors_of_unknown_shape():
    tf = pytest.importorskip("tensorflow")

    @tf.function(input_signature=[tf.TensorSpec(None, "uint8")])
    def call(x):
        return preprocess_input(x, mode="clip")

    pixels = np.full((1, 2, 2, 3), 7, "uint8")
    expected = preprocess_input(pixels, mode="clip")
    np.testing.assert_allclose(call(pixels), expected, rtol=1e-6)


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
    y = preprocess_input(kind(pixels), "channels_last", mode)
    np.testing.assert_allclose(ops.convert_to_numpy(y), expected, rtol=1e-5)
    pair = NORMALIZATIONS[mode]
    y = preprocess_input(kind(pixels), "channels_last", pair)
    np.testing.assert_allclose(ops.convert_to_numpy(y), expected, rtol=1e-5)
    first = np.moveaxis(pixels, -1, 1)
    y = preprocess_input(kind(first), "channels_first", mode)
    y = np.moveaxis(ops.convert_to_numpy(y), 1, -1)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_numbers_of_ones_own():
    mode = ([0.43, 0.411, 0.296], [0.213, 0.156, 0.143])
    y = preprocess_input(np.zeros((1, 1, 3), "uint8"), mode=mode)
    expected = [-0.43 / 0.213, -0.411 / 0.156, -0.296 / 0.143]
    np.testing.assert_allclose(y, [[expected]], rtol=1e-6)


def test_an_unknown_mode_lists_the_known_ones():
    with pytest.raises(
        ValueError, match="`mode` must be one of 'vit', 'imagenet', 'clip'"
    ):
        preprocess_input(np.zeros(3), mode="caffe")


@pytest.mark.parametrize(
    "mode", [((0, 0, 0), (1, 1)), ((0, 0, 0), (1, 0, 1)), ((0.0,), (-1.0,))]
)
def test_a_bad_pair_is_an_error(mode):
    with pytest.raises(ValueError, match="`mode` must be a name or "):
        preprocess_input(np.zeros((1, 1, 3)), mode=mode)


@pytest.mark.parametrize(
    ("shape", "data_format"),
    [
        ((2, 2, 1), None),
        ((3, 2, 2), "channels_last"),
        ((2, 3), "channels_first"),
    ],
)
def test_other_channels_than_the_mode_has_are_an_error(shape, data_format):
    with pytest.raises(ValueError, match="`x` must have 3 channels"):
        preprocess_input(np.zeros(shape), data_format, "imagenet")


@pytest.mark.parametrize(
    "data_format", [None, "channels_first", "channels_last"]
)
def test_a_data_format_changes_nothing(data_format):
    y = preprocess_input(np.array([0.0, 255.0]), data_format)
    np.testing.assert_array_equal(y, [-1, 1])


@pytest.mark.parametrize(
    "x", ["photo.jpg", None, np.array([1j]), np.array(["a"])]
)
def test_what_is_no_array_of_pixels_is_an_error(x):
    with pytest.raises(ValueError, match="`x` must be pixels. Received: "):
        preprocess_input(x)


def test_an_unknown_data_format_is_an_error():
    with pytest.raises(
        ValueError, match="`data_format` must be.*Received: data_format='NHWC'"
    ):
        preprocess_input(np.zeros(3), data_format="NHWC")


@pytest.mark.parametrize("mode", NORMALIZED)
def test_the_mode_of_a_model(mode):
    settings = Preprocessing(mode, "shortest", "bicubic", 0.9)
    model = VisionTransformer(tiny_config(preprocessing=settings))
    pixels = np.array([[[[0, 51, 255]]]], "uint8")
    y = preprocess_input(pixels, "channels_last", model=model)
    np.testing.assert_allclose(y[0, 0, 0], NORMALIZED[mode], rtol=1e-5)
    with pytest.raises(ValueError, match="`mode` and `model` both"):
        preprocess_input(pixels, mode=mode, model=model)


def test_only_a_vision_transformer_knows_its_images():
    model = VisionTransformer(tiny_config())
    around = keras.Model(model.input, model.output)
    with pytest.raises(ValueError, match=r"model\.get_layer.*Functional"):
        preprocess_input(np.zeros((1, 2, 2, 3)), model=around)
