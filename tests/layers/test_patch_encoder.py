import keras
import numpy as np
import pytest

from keras_vit.layers import PatchEncoder
from tests.tiny import noise, randomize, tensorflow_only, to_numpy


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(16, 16), (8, 24), (24, 8)])
def test_equals_a_strided_convolution(size, channels):
    x = noise(2, *size, channels)
    layer = PatchEncoder(patch_size=8, width=10)
    layer(x)
    randomize(layer)
    expected = keras.ops.conv(
        x,
        layer.kernel,
        strides=8,
        padding="valid",
        data_format="channels_last",
    )
    expected = to_numpy(expected + layer.bias).reshape(2, -1, 10)
    np.testing.assert_allclose(
        to_numpy(layer(x)), expected, rtol=1e-5, atol=1e-5
    )


def test_tokens_come_row_by_row():
    # One patch is one pixel and the projection is 1: token i is pixel i.
    layer = PatchEncoder(patch_size=1, width=1)
    x = np.arange(6, dtype="float32").reshape(1, 2, 3, 1)
    layer(x)
    layer.set_weights([np.ones((1, 1, 1, 1)), np.zeros(1)])
    np.testing.assert_array_equal(to_numpy(layer(x)).ravel(), np.arange(6))


@pytest.mark.parametrize("shape", [(2, 20, 16, 3), (2, 16, 20, 3)])
def test_an_image_that_is_not_whole_patches_is_an_error(shape):
    with pytest.raises(
        ValueError,
        match=r"`images` must be a whole number of patches.*"
        rf"image {shape[1]}x{shape[2]} pixels, patch_size=8",
    ):
        PatchEncoder(patch_size=8, width=4)(np.zeros(shape, "float32"))


def test_a_border_that_fills_no_patch_can_be_left_out():
    images = noise(2, 13, 10, 3)
    encoder = PatchEncoder(4, 24, ignore_border=True)
    tokens = to_numpy(encoder(images))  # The bias is zero.
    expected = keras.ops.conv(images, encoder.kernel, strides=4)
    np.testing.assert_allclose(
        tokens, to_numpy(expected).reshape(2, 6, 24), atol=1e-5
    )
    assert encoder.compute_output_shape((2, 13, 10, 3)) == (2, 6, 24)
    with pytest.raises(ValueError, match="whole number of patches"):
        PatchEncoder(16, 24, ignore_border=True)(images)


def test_an_image_smaller_than_a_patch_is_an_error():
    with pytest.raises(ValueError, match="whole number of patches"):
        PatchEncoder(patch_size=8, width=4)(np.zeros((2, 4, 4, 3)))


@pytest.mark.parametrize("shape", [(16, 16, 3), (2, 16, 16)])
def test_other_shapes_than_a_batch_of_images_are_an_error(shape):
    with pytest.raises(ValueError, match=r"`images` must have the shape"):
        PatchEncoder(patch_size=8, width=4)(np.zeros(shape, "float32"))


# Four images of 16x16 have as many pixels as one of 32x32: a reshape that
# trusts the built size would answer them as one image.
FOUR_SMALL_IMAGES = (4, 16, 16, 3)


def test_another_image_size_is_an_error_eagerly():
    layer = PatchEncoder(patch_size=8, width=4)
    layer(noise(1, 32, 32, 3))
    with pytest.raises(ValueError, match="incompatible with the layer"):
        layer(noise(*FOUR_SMALL_IMAGES))


@tensorflow_only
def test_another_image_size_is_an_error_in_a_function_of_any_size():
    import tensorflow as tf

    layer = PatchEncoder(patch_size=8, width=4)
    layer(noise(1, 32, 32, 3))
    function = tf.function(
        lambda x: layer(x),
        input_signature=[tf.TensorSpec((None, None, None, 3))],
    )
    assert function(noise(1, 32, 32, 3)).shape == (1, 16, 4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(noise(*FOUR_SMALL_IMAGES))


@tensorflow_only
def test_another_image_size_is_an_error_in_a_concrete_function():
    import tensorflow as tf

    layer = PatchEncoder(patch_size=8, width=4)
    layer(noise(1, 32, 32, 3))
    concrete = tf.function(lambda x: layer(x)).get_concrete_function(
        tf.TensorSpec((None, 32, 32, 3))
    )
    assert concrete(tf.constant(noise(1, 32, 32, 3))).shape == (1, 16, 4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        concrete(tf.constant(noise(*FOUR_SMALL_IMAGES)))


def test_an_open_image_size_gives_the_tokens_of_each_size():
    inputs = keras.Input((None, None, 3))
    layer = PatchEncoder(patch_size=8, width=4)
    model = randomize(keras.Model(inputs, layer(inputs)))
    for size in ((16, 8), (8, 24)):
        x = noise(2, *size, 3)
        fixed = PatchEncoder(patch_size=8, width=4)
        fixed(x)
        fixed.set_weights(layer.get_weights())
        np.testing.assert_allclose(
            to_numpy(model(x)), to_numpy(fixed(x)), rtol=1e-6, atol=1e-6
        )


@tensorflow_only
def test_an_open_image_size_refuses_a_part_of_a_patch_in_a_function():
    import tensorflow as tf

    layer = PatchEncoder(patch_size=8, width=4)
    layer(keras.Input((None, None, 3)))
    function = tf.function(
        lambda x: layer(x),
        input_signature=[tf.TensorSpec((None, None, None, 3))],
    )
    assert function(noise(3, 16, 8, 3)).shape == (3, 2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(noise(2, 20, 16, 3))
