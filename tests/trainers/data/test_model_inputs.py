import numpy as np
import tensorflow as tf

from trainers.data.model_inputs import to_model_input


def test_model_range_is_minus_one_to_one():
    image = tf.constant([[[0.0], [255.0]], [[127.5], [51.0]]])
    np.testing.assert_allclose(
        to_model_input(image, (2, 2))[..., 0], [[-1, 1], [0, -0.6]], atol=1e-6
    )
    every = np.arange(256, dtype="float32").reshape(16, 16, 1)
    np.testing.assert_array_equal(
        to_model_input(every, (16, 16)), every / np.float32(127.5) - 1
    )
    np.testing.assert_allclose(
        to_model_input(image, (2, 2), "zero_one")[..., 0], [[0, 1], [0.5, 0.2]]
    )
