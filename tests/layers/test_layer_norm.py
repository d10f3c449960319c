import keras
import numpy as np
import pytest

from keras_vit.layers import LayerNorm
from tests.tiny import noise, randomize, to_numpy


@pytest.fixture
def layer():
    layer = LayerNorm(epsilon=1e-3)
    layer.build((None, 7, 12))
    return randomize(layer)


def test_is_the_formula(layer):
    x = noise(2, 7, 12).astype("float64") * 3 + 1
    mean = x.mean(-1, keepdims=True)
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    want = (x - mean) / deviation * to_numpy(layer.gamma)
    want += to_numpy(layer.beta)
    np.testing.assert_allclose(
        to_numpy(layer(x.astype("float32"))), want, atol=1e-5
    )


def test_is_the_layer_of_keras(layer):
    other = keras.layers.LayerNormalization(epsilon=1e-3)
    other.build((None, 7, 12))
    other.set_weights(layer.get_weights())
    x = noise(2, 7, 12)
    np.testing.assert_allclose(
        to_numpy(layer(x)), to_numpy(other(x)), atol=1e-5
    )


def test_large_offsets_do_not_cancel(layer):
    """The difference of two squares would lose every digit here."""
    x = noise(2, 7, 12)
    shifted = np.float32(4096) + np.round(x * 64) / 64
    np.testing.assert_allclose(
        to_numpy(layer(shifted)),
        to_numpy(layer(shifted - np.float32(4096))),
        atol=1e-3,
    )


def test_epsilon_default_is_that_of_the_official_code():
    assert LayerNorm().epsilon == 1e-6


@pytest.mark.parametrize(
    "choices", [{"axis": 1}, {"scale": False}, {"center": False}], ids=str
)
def test_choices_of_keras_are_those_of_keras(choices):
    if "axis" in choices and keras.backend.backend() == "torch":
        pytest.skip("Keras' own layer fails there for any axis but the last.")
    ours = LayerNorm(epsilon=1e-3, **choices)
    other = keras.layers.LayerNormalization(epsilon=1e-3, **choices)
    x = noise(2, 7, 12)
    np.testing.assert_allclose(to_numpy(ours(x)), to_numpy(other(x)), atol=1e-6)
