import numpy as np
import pytest

from keras_vit.pretraining.masking import PatchCorruption
from tests.tiny import noise, randomize, to_numpy


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
