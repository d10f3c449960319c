"""Patches, learned tokens, stems and poolings: sizes, masks and errors."""

import keras
import numpy as np
import pytest

from keras_vit.layers import (
    AveragePooling,
    ClassToken,
    DistilledHead,
    PatchEncoder,
    PrefixTokens,
    ResNetStem,
)
from keras_vit.layers.resnet_stem import BottleneckUnit
from tests.layers import references
from tests.layers.cases import CASES
from tests.layers.references import Weights
from tests.tiny import noise, randomize, tensorflow_only, to_numpy

# Layers that read images, with a whole number of whose cells they end.
OF_IMAGES = {
    "patches": lambda: PatchEncoder(patch_size=8, width=4),
    "stem": lambda: ResNetStem((1,)),
}
each_of_images = pytest.mark.parametrize("name", OF_IMAGES)


@pytest.mark.parametrize(
    "shape", [(2, 20, 16, 3), (2, 16, 20, 3), (2, 4, 4, 3)]
)
def test_an_image_that_is_not_whole_patches_is_an_error(shape):
    message = rf"`images`.*{shape[1]}x{shape[2]} pixels, patch_size=8"
    with pytest.raises(ValueError, match=message):
        OF_IMAGES["patches"]()(np.zeros(shape, "float32"))
    smaller = PatchEncoder(patch_size=32, width=4, ignore_border=True)
    with pytest.raises(ValueError, match="`images`"):
        smaller(np.zeros(shape, "float32"))


@pytest.mark.parametrize("shape", [(16, 16, 3), (2, 16, 16)])
def test_other_shapes_than_a_batch_of_images_are_an_error(shape):
    with pytest.raises(ValueError, match=r"`images` must have the shape"):
        OF_IMAGES["patches"]()(np.zeros(shape, "float32"))


@each_of_images
def test_another_image_size_is_an_error(name):
    layer = OF_IMAGES[name]()
    layer(noise(1, 32, 32, 3))
    with pytest.raises(ValueError, match="incompatible with the layer"):
        layer(noise(4, 16, 16, 3))


@tensorflow_only
@pytest.mark.parametrize("is_open", [True, False])
@each_of_images
def test_another_image_size_is_an_error_in_a_graph(name, is_open):
    """A reshape that trusts the built size would take four for one image."""
    import tensorflow as tf

    layer = OF_IMAGES[name]()
    count = layer(noise(1, 32, 32, 3)).shape[1]
    side = None if is_open else 32
    function = tf.function(layer).get_concrete_function(
        tf.TensorSpec((None, side, side, 3))
    )
    assert function(tf.constant(noise(1, 32, 32, 3))).shape[1] == count
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.constant(noise(4, 16, 16, 3)))


@each_of_images
def test_an_open_image_size_gives_the_result_of_each_size(name):
    inputs, layer = keras.Input((None, None, 3)), OF_IMAGES[name]()
    model = randomize(keras.Model(inputs, layer(inputs)))
    for size in ((16, 8), (8, 24)):
        x, fixed = noise(2, *size, 3), OF_IMAGES[name]()
        fixed(x)
        fixed.set_weights(layer.get_weights())
        np.testing.assert_allclose(
            to_numpy(model(x)), to_numpy(fixed(x)), rtol=1e-5, atol=1e-4
        )


@tensorflow_only
def test_a_graph_of_any_size_names_the_fault_of_a_part_of_a_patch():
    import tensorflow as tf

    layer = OF_IMAGES["patches"]()
    layer(keras.Input((None, None, 3)))
    function = tf.function(
        lambda x: layer(x),
        input_signature=[tf.TensorSpec((None, None, None, 3))],
    )
    assert function(noise(3, 16, 8, 3)).shape == (3, 2, 4)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="whole_number_of_patches"
    ):
        function(noise(2, 20, 16, 3))


@pytest.mark.parametrize(
    ("stages", "size", "expected"),
    [
        ((), (224, 224), (56, 56, 64)),
        ((3, 4, 9), (224, 224), (14, 14, 1024)),
        ((2, 2, 2, 2), (224, 224), (7, 7, 2048)),
        ((1,), (64, 32), (16, 8, 256)),
        # SAME padding rounds up.
        ((1, 1), (33, 50), (5, 7, 512)),
    ],
)
def test_shapes_of_stems(stages, size, expected):
    stem = ResNetStem(stages)
    shape = stem.compute_output_shape((None, *size, 3))
    assert tuple(shape) == (None, *expected)
    if size[0] < 64:
        assert tuple(stem(noise(1, *size, 1)).shape) == (1, *expected)


def test_strides_and_epsilons_of_stems():
    stem = ResNetStem((2, 3), "timm")
    assert [unit.stride for unit in stem.units] == [1, 1, 2, 1, 1]
    assert [unit.features for unit in stem.units] == [64, 64, 128, 128, 128]
    stem.build((None, 32, 32, 3))
    for layer in stem._flatten_layers():
        if isinstance(layer, keras.layers.GroupNormalization):
            assert layer.epsilon == 1e-5
        assert getattr(layer, "epsilons", "timm") == "timm"
    # The scale of its last normalisation starts at zero.
    x = np.abs(noise(2, 4, 4, 128))
    y = BottleneckUnit(32)(x)
    np.testing.assert_allclose(to_numpy(y), x, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_learned_tokens(count):
    layer = PrefixTokens(count) if count > 1 else ClassToken()
    x = noise(2, 3, 4)
    layer(x)
    token = to_numpy(layer.token)[0]
    # Else they would stay equal for ever.
    assert np.abs(token).max() < 0.2
    assert len(np.unique(token, axis=0)) == count
    # A float32 token beside float16 patches failed in other packages.
    for policy in ("mixed_bfloat16", "mixed_float16"):
        y = type(layer)(count, dtype=policy)(x)
        assert keras.backend.standardize_dtype(y.dtype) == policy[6:]
    mask = np.array([[True, False, True], [False, False, False]])
    found = keras.ops.convert_to_numpy(layer.compute_mask(None, mask))
    expected = np.pad(mask, ((0, 0), (count, 0)), constant_values=True)
    np.testing.assert_array_equal(found, expected)
    assert layer.compute_mask(None, None) is None
    assert tuple(layer(keras.Input((None, 4))).shape) == (None, None, 4)


def test_average_is_summed_in_float32():
    # A bfloat16 sum of ones stops at 256.
    x = np.ones((1, 2000, 2), "float32")
    y = AveragePooling(dtype="mixed_bfloat16")(x)
    np.testing.assert_array_equal(to_numpy(y), np.ones((1, 2)))


@pytest.mark.parametrize("name", ["token", "avg", "max", "map tanh", "probe"])
def test_the_mask_ends_in_a_pooling_without_a_warning(name, recwarn):
    # One vector an image has no tokens left to mask.
    case = CASES[name]
    tokens = keras.Input((5, 12))
    pooled = case.layer_class(**case.kwargs)(keras.layers.Masking()(tokens))
    assert getattr(pooled, "_keras_mask", None) is None
    keras.Model(tokens, pooled)(noise(2, 5, 12))
    assert not [w for w in recwarn if "mask" in str(w.message)]


def test_the_logits_of_two_heads_can_be_read():
    layer, x = DistilledHead(5, head_bias=-3.0), noise(2, 2, 12)
    np.testing.assert_array_equal(to_numpy(layer(x)), -3)
    w = Weights(randomize(layer))
    for place, name in enumerate(("class_head", "teacher_head")):
        found = to_numpy(layer.both_logits(x)[place])
        np.testing.assert_allclose(found, w.dense(x[:, place], name), atol=1e-5)


def test_the_stored_kernel_of_a_convolution_is_not_standardized():
    unit, x = BottleneckUnit(32), noise(1, 4, 4, 64)
    unit(x)
    before = unit.get_weights()
    unit(x)
    np.testing.assert_equal(unit.get_weights(), before)
    kernel = before[0]
    assert np.abs(kernel.mean(axis=(0, 1, 2))).max() > 1e-3
    scaled = references.convolve(x, kernel)
    np.testing.assert_allclose(to_numpy(unit.convs[0](x)), scaled, atol=1e-4)
