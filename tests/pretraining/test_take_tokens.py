import numpy as np

from keras_vit.pretraining.masking import TakeTokens
from tests.tiny import noise, to_numpy


def test_tokens_are_taken_as_numpy_takes_them():
    tokens = noise(3, 7, 4)
    indices = np.random.default_rng(0).integers(0, 7, (3, 5)).astype("int32")
    want = np.take_along_axis(tokens, indices[..., None], axis=1)
    got = TakeTokens()(tokens, indices)
    np.testing.assert_array_equal(to_numpy(got), want)
    # Numbers without features, such as classes.
    got = TakeTokens()(tokens[..., 0], indices)
    np.testing.assert_array_equal(to_numpy(got), want[..., 0])
