import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import decode_predictions, preprocess_input
from keras_vit.preprocessing import (
    NORMALIZATIONS,
    imagenet_classes,
    read_image,
)


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


def test_an_unknown_data_format_is_an_error():
    with pytest.raises(
        ValueError, match="`data_format` must be.*Received: data_format='NHWC'"
    ):
        preprocess_input(np.zeros(3), data_format="NHWC")


def test_imagenet_has_its_1000_classes_in_the_order_of_wordnet():
    identifiers = [identifier for identifier, _ in imagenet_classes()]
    assert len(identifiers) == 1000
    assert identifiers == sorted(set(identifiers))
    assert all(i[0] == "n" and len(i) == 9 for i in identifiers)
    assert all(name for _, name in imagenet_classes())


# Indices that any list of the ILSVRC 2012 classes agrees on.
@pytest.mark.parametrize(
    ("index", "identifier", "name"),
    [
        (0, "n01440764", "tench"),
        (1, "n01443537", "goldfish"),
        (207, "n02099601", "golden retriever"),
        (281, "n02123045", "tabby"),
        (388, "n02510455", "giant panda"),
        (468, "n02930766", "cab"),
        (817, "n04285008", "sports car"),
        (999, "n15075141", "toilet tissue"),
    ],
)
def test_known_classes_of_imagenet(index, identifier, name):
    scores = np.zeros((1, 1000), "float32")
    scores[0, index] = 0.9
    (((actual_identifier, actual_name, score),),) = decode_predictions(
        scores, top=1
    )
    assert actual_identifier == identifier
    assert actual_name.startswith(name)
    assert score == pytest.approx(0.9)


def test_both_cranes_and_maillots_are_classes_of_their_own():
    # Lists that hold a name once are known to have 998 classes.
    by_name = {}
    for identifier, name in imagenet_classes():
        by_name.setdefault(name.split(",")[0], []).append(identifier)
    assert len(by_name["crane"]) == 2


def test_highest_first_for_each_image():
    scores = np.array([[0.1, 0.7, 0.2], [5.0, -1.0, 6.0]])
    assert decode_predictions(scores, 2, class_names=["a", "b", "c"]) == [
        [("1", "b", 0.7), ("2", "c", 0.2)],
        [("2", "c", 6.0), ("0", "a", 5.0)],
    ]


def test_equal_scores_come_in_the_order_of_their_classes():
    (row,) = decode_predictions(np.zeros((1, 3)), class_names=["a", "b", "c"])
    assert [name for _, name, _ in row] == ["a", "b", "c"]


def test_top_is_at_most_the_number_of_classes():
    (row,) = decode_predictions(np.zeros((1, 2)), top=9, class_names="ab")
    assert len(row) == 2


def test_five_by_default():
    (row,) = decode_predictions(np.zeros((1, 1000)))
    assert len(row) == 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tensors_are_decoded(dtype):
    scores = ops.cast(np.array([[0.25, 0.5]]), dtype)
    (row,) = decode_predictions(scores, class_names=["a", "b"])
    assert row == [("1", "b", 0.5), ("0", "a", 0.25)]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_integer_scores_of_a_quantized_model_are_ordered(dtype):
    # Minus zero is zero and minus -128 is -128: the order of the negative
    # is not the reverse one.
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    scores = np.array([[low, high, low + 1]], dtype)
    (row,) = decode_predictions(scores, class_names=["low", "high", "next"])
    assert [name for _, name, _ in row] == ["high", "next", "low"]


@pytest.mark.parametrize("top", [0, -1])
def test_a_top_below_one_is_an_error(top):
    with pytest.raises(ValueError, match="`top`"):
        decode_predictions(np.zeros((1, 2)), top=top, class_names="ab")


@pytest.mark.parametrize("shape", [(1000,), (1, 1, 1000), ()])
def test_other_shapes_than_a_batch_of_scores_are_an_error(shape):
    with pytest.raises(
        ValueError, match=r"`predictions` must have the shape \(B, C\)"
    ):
        decode_predictions(np.zeros(shape))


def test_another_number_of_classes_is_an_error():
    with pytest.raises(
        ValueError,
        match=r"one column for each of 1000 classes; pass `class_names`.*"
        r"Received: shape=\(2, 7\)",
    ):
        decode_predictions(np.zeros((2, 7)))
    with pytest.raises(ValueError, match="one column for each of 2 classes"):
        decode_predictions(np.zeros((2, 7)), class_names=["a", "b"])


def test_images_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    pillow = pytest.importorskip("PIL.Image")
    whole = tmp_path / "whole.png"
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), "uint8")
    pillow.fromarray(noise).save(whole)
    np.testing.assert_array_equal(read_image(whole), noise)
    assert read_image(whole, 1, (8, 6)).shape == (8, 6, 1)
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:900])
    with pytest.raises(ValueError, match=r"cut\.png"):
        read_image(cut)
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"whole\.png .*decompression bomb"):
        read_image(whole)
    with pytest.raises(OSError, match=r"none\.png"):
        read_image(tmp_path / "none.png")
    with pytest.raises(ValueError, match="`channels` must be one of"):
        read_image(whole, 2)
