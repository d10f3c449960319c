import keras
import numpy as np
import pytest

from keras_vit.layers import ResNetStem
from keras_vit.layers.resnet_stem import BottleneckUnit, StandardizedConv2D
from tests.tiny import noise, randomize, tensorflow_only, to_numpy


@pytest.mark.parametrize(
    ("stages", "size", "expected"),
    [
        ((), (224, 224), (56, 56, 64)),
        ((3, 4, 9), (224, 224), (14, 14, 1024)),
        ((2, 2, 2, 2), (224, 224), (7, 7, 2048)),
        ((1,), (64, 32), (16, 8, 256)),
        ((1, 2), (64, 32), (8, 4, 512)),
        # SAME padding rounds up.
        ((1, 1), (33, 50), (5, 7, 512)),
    ],
)
def test_output_shapes(stages, size, expected):
    shape = ResNetStem(stages).compute_output_shape((None, *size, 3))
    assert tuple(shape) == (None, *expected)


@pytest.mark.parametrize("stages", [(), (1,), (1, 1)])
def test_computed_shape_is_that_of_the_result(stages):
    stem = ResNetStem(stages)
    y = stem(noise(1, 33, 18, 3))
    assert tuple(y.shape) == tuple(stem.compute_output_shape((1, 33, 18, 3)))


def standardized(kernel):
    """Mean 0, deviation 1 for each output channel, epsilon on the latter."""
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    return centred / (kernel.std(axis=(0, 1, 2)) + 1e-5)


def convolution_in_numpy(x, kernel, stride):
    """A convolution with TensorFlow's SAME padding, pixel by pixel."""
    size = kernel.shape[0]
    out = [-(-n // stride) for n in x.shape[1:3]]
    total = [
        max((o - 1) * stride + size - n, 0) for o, n in zip(out, x.shape[1:3])
    ]
    pads = [(t // 2, t - t // 2) for t in total]
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    rows = [
        [
            np.tensordot(
                x[:, i * stride : i * stride + size, j * stride :][:, :, :size],
                kernel,
                axes=3,
            )
            for j in range(out[1])
        ]
        for i in range(out[0])
    ]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


@pytest.mark.parametrize(
    ("size", "strides"), [(1, 1), (3, 1), (3, 2), (7, 2), (1, 2)]
)
def test_standardized_convolution_equals_its_formula(size, strides):
    layer = StandardizedConv2D(5, size, strides=strides)
    x = noise(2, 8, 7, 3)
    layer(x)
    (kernel,) = randomize(layer).get_weights()
    expected = convolution_in_numpy(x, standardized(kernel), strides)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-4)


def test_epsilon_is_added_to_the_deviation_of_the_kernel():
    # For a kernel this small an epsilon in the variance, 1e-5 or 1e-10,
    # would give other numbers.
    layer = StandardizedConv2D(4, 1)
    x = noise(1, 2, 2, 3)
    layer(x)
    layer.set_weights([noise(1, 1, 3, 4, scale=1e-5)])
    expected = x @ standardized(layer.get_weights()[0][0, 0][None, None])[0, 0]
    np.testing.assert_allclose(to_numpy(layer(x)), expected, rtol=1e-3)


def test_timm_adds_to_the_variances():
    kernel = noise(1, 1, 3, 4, scale=1e-4)
    layer = StandardizedConv2D(4, 1, epsilons="timm")
    x = noise(1, 2, 2, 3)
    layer(x)
    layer.set_weights([kernel])
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    deviation = np.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-8)
    expected = x @ (centred / deviation)[0, 0]
    np.testing.assert_allclose(to_numpy(layer(x)), expected, rtol=1e-4)
    stem = ResNetStem((1,), "timm")
    stem.build((None, 16, 16, 3))
    [unit] = stem.units
    norms = [stem.root_norm, *unit.norms, unit.shortcut_norm]
    assert {norm.epsilon for norm in norms} == {1e-5}
    convs = [stem.root_conv, *unit.convs, unit.shortcut_conv]
    assert {conv.epsilons for conv in convs} == {"timm"}
    with pytest.raises(ValueError, match="`epsilons` must be one of 'officia"):
        ResNetStem((1,), "flax")


def test_the_epsilons_are_serialized():
    for layer in (
        ResNetStem((1,), "timm"),
        BottleneckUnit(32, epsilons="timm"),
        StandardizedConv2D(4, 1, epsilons="timm"),
    ):
        again = type(layer).from_config(layer.get_config())
        assert again.epsilons == "timm"


def test_the_stored_kernel_is_not_standardized():
    layer = StandardizedConv2D(4, 3)
    x = noise(1, 4, 4, 3)
    layer(x)
    before = layer.get_weights()[0]
    layer(x)
    np.testing.assert_array_equal(layer.get_weights()[0], before)
    assert abs(before.mean()) > 1e-4


def group_norm_in_numpy(x, gamma, beta):
    groups = x.reshape(*x.shape[:3], 32, -1)
    mean = groups.mean(axis=(1, 2, 4), keepdims=True)
    variance = groups.var(axis=(1, 2, 4), keepdims=True)
    normed = (groups - mean) / np.sqrt(variance + 1e-6)
    return normed.reshape(x.shape) * gamma + beta


@pytest.mark.parametrize(
    ("channels", "stride", "projects"),
    [(128, 1, False), (64, 1, True), (128, 2, True)],
)
def test_bottleneck_unit_equals_its_formula(channels, stride, projects):
    unit = BottleneckUnit(32, stride=stride)
    x = noise(2, 6, 5, channels)
    unit(x)
    weights = {w.path: to_numpy(w) for w in randomize(unit).weights}
    weights = {path.split("/", 1)[1]: w for path, w in weights.items()}

    def conv_norm(x, conv, norm, stride=1):
        kernel = standardized(weights[f"{conv}/kernel"])
        x = convolution_in_numpy(x, kernel, stride)
        return group_norm_in_numpy(
            x, weights[f"{norm}/gamma"], weights[f"{norm}/beta"]
        )

    # The activation comes after each convolution, the stride on the 3x3.
    y = np.maximum(conv_norm(x, "conv1", "norm1"), 0)
    y = np.maximum(conv_norm(y, "conv2", "norm2", stride), 0)
    y = conv_norm(y, "conv3", "norm3")
    assert ("shortcut_conv/kernel" in weights) == projects
    shortcut = x
    if projects:
        shortcut = conv_norm(x, "shortcut_conv", "shortcut_norm", stride)
    expected = np.maximum(shortcut + y, 0)
    np.testing.assert_allclose(to_numpy(unit(x)), expected, atol=1e-3)


def test_a_new_unit_passes_a_positive_input_on():
    # The scale of its last normalisation starts at zero.
    x = np.abs(noise(2, 4, 4, 128))
    unit = BottleneckUnit(32)
    np.testing.assert_allclose(to_numpy(unit(x)), x, atol=1e-6)


def test_strides_follow_the_stages():
    stem = ResNetStem((2, 3))
    assert [unit.stride for unit in stem.units] == [1, 1, 2, 1, 1]
    assert [unit.features for unit in stem.units] == [64, 64, 128, 128, 128]


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels(channels):
    stem = ResNetStem(())
    assert tuple(stem(noise(1, 16, 16, channels)).shape) == (1, 4, 4, 64)


def test_another_image_size_is_an_error_eagerly():
    stem = ResNetStem(())
    stem(noise(1, 32, 32, 3))
    with pytest.raises(ValueError, match="incompatible with the layer"):
        stem(noise(4, 16, 16, 3))


@tensorflow_only
def test_another_image_size_is_an_error_in_a_function_of_any_size():
    import tensorflow as tf

    stem = ResNetStem(())
    stem(noise(1, 32, 32, 3))
    function = tf.function(
        lambda x: stem(x),
        input_signature=[tf.TensorSpec((None, None, None, 3))],
    )
    assert function(noise(1, 32, 32, 3)).shape == (1, 8, 8, 64)
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(noise(4, 16, 16, 3))


def test_an_open_image_size_gives_the_map_of_each_size():
    inputs = keras.Input((None, None, 3))
    stem = ResNetStem((1,))
    model = randomize(keras.Model(inputs, stem(inputs)))
    x = noise(1, 16, 32, 3)
    fixed = ResNetStem((1,))
    fixed(x)
    fixed.set_weights(stem.get_weights())
    np.testing.assert_allclose(
        to_numpy(model(x)), to_numpy(fixed(x)), atol=1e-4
    )
