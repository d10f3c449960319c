import keras
import numpy as np
import pytest

from keras_vit.layers import ClassToken
from tests.tiny import noise, randomize, to_numpy


def test_the_token_comes_first_and_the_patches_keep_their_values():
    x = noise(2, 3, 4)
    layer = ClassToken()
    layer(x)
    randomize(layer)
    y = to_numpy(layer(x))
    assert y.shape == (2, 4, 4)
    token = to_numpy(layer.token)[0, 0]
    np.testing.assert_array_equal(y[:, 0], np.stack([token, token]))
    np.testing.assert_array_equal(y[:, 1:], x)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_token_takes_the_compute_type(policy):
    # A float32 token beside float16 patches failed in other packages.
    y = ClassToken(dtype=policy)(noise(2, 3, 4))
    assert keras.backend.standardize_dtype(y.dtype) == policy[6:]


def test_the_mask_gets_a_place_for_the_token():
    mask = np.array([[True, False, True], [False, False, False]])
    layer = ClassToken()
    layer(noise(2, 3, 4))
    actual = keras.ops.convert_to_numpy(layer.compute_mask(None, mask))
    assert actual.dtype == bool
    np.testing.assert_array_equal(
        actual,
        [[True, True, False, True], [True, False, False, False]],
    )
    assert layer.compute_mask(None, None) is None


def test_an_open_number_of_tokens_stays_open():
    y = ClassToken()(keras.Input((None, 4)))
    assert tuple(y.shape) == (None, None, 4)
