import numpy as np
import pytest

from keras_vit.pretraining.masking import (
    NUM_FIXED_ORDERS,
    RandomPatchOrder,
)
from tests.tiny import noise, to_numpy


@pytest.mark.parametrize("training", [False, True])
def test_each_row_is_a_permutation(training):
    order = RandomPatchOrder(12)(noise(50, 4, 6, 3), training=training)
    rows = np.sort(to_numpy(order), axis=-1)
    np.testing.assert_array_equal(rows, np.tile(np.arange(12), (50, 1)))


def test_training_draws_anew_for_each_image_and_call():
    layer, images = RandomPatchOrder(12, seed=3), np.zeros((40, 4, 6, 3))
    first, second = (to_numpy(layer(images, training=True)) for _ in range(2))
    assert len(np.unique(np.concatenate([first, second]), axis=0)) == 80
    again = RandomPatchOrder(12, seed=3)(images, training=True)
    np.testing.assert_array_equal(first, to_numpy(again))


def test_each_patch_is_equally_often_hidden():
    images = np.zeros((4000, 1, 1, 1))
    order = to_numpy(RandomPatchOrder(10, seed=0)(images, training=True))
    counts = np.bincount(order[:, :3].ravel(), minlength=10)
    # 1,200 of each are expected; the deviation is 29.
    assert abs(counts - 1200).max() < 120


def test_in_inference_the_order_depends_on_the_image_alone():
    layer, images = RandomPatchOrder(12), noise(300, 4, 6, 3)
    whole = to_numpy(layer(images))
    one_by_one = [to_numpy(layer(image[None]))[0] for image in images[:20]]
    np.testing.assert_array_equal(whole[:20], one_by_one)
    other = RandomPatchOrder(12, seed=9)
    np.testing.assert_array_equal(whole, to_numpy(other(images)))
    # Nearly all orders are used.
    found = len(np.unique(whole, axis=0))
    assert 0.9 * NUM_FIXED_ORDERS < found <= NUM_FIXED_ORDERS
