import numpy as np
import pytest

from keras_vit.layers import ClassToken, PrefixTokens
from tests.tiny import noise, randomize, to_numpy


def test_the_tokens_come_first_and_the_patches_keep_their_values():
    layer, x = PrefixTokens(num_tokens=3), noise(2, 5, 4)
    layer(x)
    randomize(layer)
    y = to_numpy(layer(x))
    tokens = to_numpy(layer.token)[0]
    np.testing.assert_array_equal(y[:, :3], np.stack([tokens, tokens]))
    np.testing.assert_array_equal(y[:, 3:], x)


def test_new_tokens_differ():
    """Else they would stay equal for ever."""
    layer = PrefixTokens(num_tokens=2)
    layer(noise(1, 5, 4))
    first, second = to_numpy(layer.token)[0]
    assert 0 < np.abs(first - second).max() < 0.2


def test_a_class_token_is_one_of_them():
    assert issubclass(ClassToken, PrefixTokens)
    assert "num_tokens" not in ClassToken().get_config()


def test_a_number_that_is_not_positive_is_an_error():
    with pytest.raises(ValueError, match="positive. Received: num_tokens=0"):
        PrefixTokens(num_tokens=0)
