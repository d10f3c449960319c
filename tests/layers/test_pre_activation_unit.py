"""The unit of BiT, and its convolution, against their formulas in NumPy."""

import numpy as np
import pytest

from keras_vit.layers import PreActivationUnit
from keras_vit.layers.resnet_stem import StandardizedConv2D
from tests.tiny import noise, randomize, to_numpy


def convolve(x, kernel, stride):
    """Standardise the kernel, pad equally with zeros, and convolve."""
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    kernel = centred / np.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-10)
    side = len(kernel)
    pads = ((0, 0), (side // 2, side // 2), (side // 2, side // 2), (0, 0))
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, pads), (side, side), axis=(1, 2)
    )[:, ::stride, ::stride]
    return np.einsum("bhwcij,ijcd->bhwd", windows, kernel)


def norm_relu(x, gamma, beta, groups):
    grouped = x.reshape(*x.shape[:3], groups, -1)
    mean = grouped.mean(axis=(1, 2, 4), keepdims=True)
    variance = grouped.var(axis=(1, 2, 4), keepdims=True)
    normed = (grouped - mean) / np.sqrt(variance + 1e-5)
    return np.maximum(normed.reshape(x.shape) * gamma + beta, 0)


@pytest.mark.parametrize("size", [(8, 6), (7, 5)])
@pytest.mark.parametrize("side", [1, 3, 7])
def test_symmetric_padding_equals_its_formula(side, size):
    layer = StandardizedConv2D(
        5, side, 2, epsilons="bit", use_symmetric_padding=True
    )
    x = noise(2, *size, 3)
    layer(x)
    [kernel] = randomize(layer).get_weights()
    y = to_numpy(layer(x))
    np.testing.assert_allclose(y, convolve(x, kernel, 2), atol=1e-4)
    assert y.shape == tuple(layer.compute_output_shape(x.shape))


def test_epsilon_is_added_to_the_variance_of_the_kernel():
    # So small a kernel shows whether it is 1e-10.
    layer = StandardizedConv2D(4, 1, epsilons="bit", use_symmetric_padding=True)
    x = noise(1, 2, 2, 3)
    layer(x)
    kernel = noise(1, 1, 3, 4, scale=1e-5)
    layer.set_weights([kernel])
    expected = convolve(x, kernel, 1)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("channels", "stride", "projects"),
    [(64, 1, False), (32, 1, True), (64, 2, True)],
)
def test_unit_equals_its_formula(channels, stride, projects):
    unit = PreActivationUnit(16, stride=stride, groups=8)
    x = noise(2, 6, 5, channels)
    unit(x)
    weights = {w.path: to_numpy(w) for w in randomize(unit).weights}
    weights = {path.split("/", 1)[1]: w for path, w in weights.items()}

    def norm(y, name):
        gamma, beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]
        return norm_relu(y, gamma, beta, groups=8)

    first = norm(x, "norm1")
    y = convolve(first, weights["conv1/kernel"], 1)
    y = convolve(norm(y, "norm2"), weights["conv2/kernel"], stride)
    y = convolve(norm(y, "norm3"), weights["conv3/kernel"], 1)
    assert ("shortcut_conv/kernel" in weights) == projects
    shortcut = x
    if projects:
        # Of the activation, not of the input.
        shortcut = convolve(first, weights["shortcut_conv/kernel"], stride)
    expected = shortcut + y
    np.testing.assert_allclose(
        to_numpy(unit(x)), expected, atol=1e-5 * np.abs(expected).max()
    )
