import numpy as np

from keras_vit.layers import RmsNorm
from tests.tiny import noise, randomize, to_numpy


def test_equals_its_formula():
    layer, x = RmsNorm(epsilon=1e-2), noise(2, 5, 12)
    layer(x)
    randomize(layer)
    root = np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-2)
    expected = x / root * to_numpy(layer.gamma)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-6)


def test_large_numbers_of_half_precision_do_not_overflow():
    x = np.full((1, 1, 8), 6e4, "float16")
    y = RmsNorm(dtype="float16")(x)
    np.testing.assert_allclose(to_numpy(y), 1, rtol=1e-3)
