"""Layers that hide patches."""

import numpy as np
import pytest

from keras_vit.layers.fewer_tokens import TakeTokens
from keras_vit.pretraining.masking import (
    NUM_FIXED_ORDERS,
    PatchCorruption,
    RandomPatchOrder,
)
from tests.tiny import noise, randomize, to_numpy


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


def draw(count, seed=0):
    random = np.random.default_rng(seed)
    order = np.stack([random.permutation(count) for _ in range(3)])
    return noise(3, count, 4), order.astype("int32")


@pytest.mark.parametrize(
    "count, corrupted, masked, swapped",
    [(196, 98, 78, 10), (16, 8, 6, 1), (20, 3, 2, 0)],
)
def test_patches_become_the_mask_or_another_patch_or_stay(
    count, corrupted, masked, swapped
):
    tokens, order = draw(count)
    layer = PatchCorruption(corrupted)
    layer(tokens, order)
    randomize(layer)
    result = to_numpy(layer(tokens, order))
    token = to_numpy(layer.token)[0, 0]
    for image, row, changed in zip(tokens, order, result):
        hidden = row[:corrupted]
        is_mask = (changed == token).all(-1)
        assert set(np.flatnonzero(is_mask)) == set(hidden[:masked])
        # Where each of the others is from.
        sources = {
            place: int(np.flatnonzero((image == changed[place]).all(-1))[0])
            for place in np.flatnonzero(~is_mask)
        }
        moved = {place for place, source in sources.items() if place != source}
        assert moved == set(hidden[masked : masked + swapped])
        # From patches that are not corrupted themselves.
        assert not {sources[place] for place in moved} & set(hidden)


@pytest.mark.parametrize("corrupted", [0, 9])
def test_none_or_all_patches_cannot_be_corrupted(corrupted):
    with pytest.raises(ValueError, match="`num_corrupted` must be at least 1"):
        PatchCorruption(corrupted)(*draw(9))


def test_tokens_are_taken_as_numpy_takes_them():
    tokens = noise(3, 7, 4)
    indices = np.random.default_rng(0).integers(0, 7, (3, 5)).astype("int32")
    want = np.take_along_axis(tokens, indices[..., None], axis=1)
    got = TakeTokens()(tokens, indices)
    np.testing.assert_array_equal(to_numpy(got), want)
    # Numbers without features, such as classes.
    got = TakeTokens()(tokens[..., 0], indices)
    np.testing.assert_array_equal(to_numpy(got), want[..., 0])
