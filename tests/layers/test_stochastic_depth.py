import numpy as np
import pytest

from keras_vit.layers import StochasticDepth
from tests.tiny import noise, to_numpy


def test_inference_is_the_identity():
    x = noise(4, 3, 2)
    layer = StochasticDepth(0.9, seed=0)
    np.testing.assert_array_equal(to_numpy(layer(x)), x)
    np.testing.assert_array_equal(to_numpy(layer(x, training=False)), x)


def test_a_rate_of_zero_is_the_identity_in_training():
    x = noise(4, 3, 2)
    y = StochasticDepth(0.0)(x, training=True)
    np.testing.assert_array_equal(to_numpy(y), x)


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_whole_images_are_dropped_and_the_rest_is_scaled(rate):
    x = np.ones((4000, 3, 2), "float32")
    y = to_numpy(StochasticDepth(rate, seed=1)(x, training=True))
    by_image = y.reshape(4000, -1)
    # All numbers of an image share their fate.
    assert np.all(by_image == by_image[:, :1])
    kept = by_image[:, 0] != 0
    np.testing.assert_allclose(by_image[kept], 1 / (1 - rate), rtol=1e-6)
    # Four deviations of the mean of 4000 draws.
    four_sigma = 4 * (rate * (1 - rate) / 4000) ** 0.5
    assert abs(kept.mean() - (1 - rate)) < four_sigma


def test_one_seed_gives_one_sequence_of_different_draws():
    x = np.ones((64, 1), "float32")

    def draw_twice(seed):
        layer = StochasticDepth(0.5, seed=seed)
        return [to_numpy(layer(x, training=True)) for _ in range(2)]

    first, second = draw_twice(7)
    np.testing.assert_array_equal([first, second], draw_twice(7))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, draw_twice(8)[0])


def test_any_rank_is_dropped_by_image():
    for shape in ((50,), (50, 2), (50, 2, 3, 4)):
        x = np.ones(shape, "float32")
        y = to_numpy(StochasticDepth(0.5, seed=2)(x, training=True))
        by_image = y.reshape(50, -1)
        assert np.all(by_image == by_image[:, :1])
        assert {0.0, 2.0} == set(by_image[:, 0])


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_a_rate_outside_of_its_range_is_an_error(rate):
    with pytest.raises(
        ValueError, match=rf"`rate` must be in \[0, 1\). Received: rate={rate}"
    ):
        StochasticDepth(rate)
