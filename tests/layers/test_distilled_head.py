import numpy as np
from scipy.special import softmax

from keras_vit.layers import DistilledHead
from tests.tiny import noise, randomize, to_numpy


def test_the_logits_are_the_mean_of_two_classifiers():
    layer, x = DistilledHead(5), noise(2, 2, 12)
    layer(x)
    randomize(layer)
    kernel1, bias1, kernel2, bias2 = layer.get_weights()
    one, other = x[:, 0] @ kernel1 + bias1, x[:, 1] @ kernel2 + bias2
    np.testing.assert_allclose(to_numpy(layer(x)), (one + other) / 2, atol=1e-6)
    for found, expected in zip(layer.both_logits(x), (one, other)):
        np.testing.assert_allclose(to_numpy(found), expected, atol=1e-6)


def test_the_activation_is_that_of_the_mean():
    layer, x = DistilledHead(5, activation="softmax"), noise(2, 2, 12)
    layer(x)
    randomize(layer)
    one, other = map(to_numpy, layer.both_logits(x))
    np.testing.assert_allclose(
        to_numpy(layer(x)), softmax((one + other) / 2, axis=-1), atol=1e-6
    )


def test_a_new_head_answers_its_bias():
    layer = DistilledHead(5, head_bias=-3.0)
    np.testing.assert_array_equal(to_numpy(layer(noise(2, 2, 12))), -3)
