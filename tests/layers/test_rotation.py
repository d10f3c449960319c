import numpy as np
import pytest

from keras_vit.layers import TransformerBlock
from keras_vit.layers.rotary import PAIRS, rotate_pairs
from tests.layers.block_in_numpy import block_in_numpy, turn
from tests.tiny import noise, randomize, to_numpy

ANGLES = noise(5, 3, 4, seed=3)  # (T, K, E/2)


def rotation_of(angles, pairs):
    repeat = np.repeat if pairs == "neighbours" else np.tile
    counts = (2, -1) if pairs == "neighbours" else ((1, 1, 2),)
    angles = repeat(angles, *counts)
    return np.stack([np.cos(angles), np.sin(angles)])


@pytest.mark.parametrize("pairs", PAIRS)
def test_pairs_are_turned_like_complex_numbers(pairs):
    x = noise(2, 5, 3, 8)
    y = to_numpy(rotate_pairs(x, rotation_of(ANGLES, pairs), pairs))
    for head in range(3):
        expected = turn(x[:, :, head], ANGLES[:, head], pairs)
        np.testing.assert_allclose(y[:, :, head], expected, atol=1e-6)


@pytest.mark.parametrize("pairs", PAIRS)
def test_the_product_depends_on_the_difference_of_the_angles(pairs):
    """The purpose of rotary positions (Su et al. 2021, eq. 14)."""
    x = noise(1, 5, 3, 8)
    shifted = ANGLES + noise(1, 3, 4, seed=4)  # The same for every token.

    def products(angles):
        turned = to_numpy(rotate_pairs(x, rotation_of(angles, pairs), pairs))
        return np.einsum("btke,bske->bkts", turned, turned)

    np.testing.assert_allclose(products(ANGLES), products(shifted), atol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("pairs", PAIRS)
def test_a_block_turns_queries_and_keys(pairs, heads):
    options = {"rotary_pairs": pairs, "qk_norm": "head"}
    block = TransformerBlock(3, 20, attention_options=options)
    x, angles = noise(2, 5, 24), ANGLES[:, :heads]
    rotation = rotation_of(angles, pairs)
    block(x, rotation=rotation)
    randomize(block)
    np.testing.assert_allclose(
        to_numpy(block(x, rotation=rotation)),
        block_in_numpy(block, x, angles),
        atol=2e-5,
    )
    assert np.abs(to_numpy(block(x, rotation=rotation) - block(x))).max() > 0.01


def test_an_unknown_kind_of_pairs_is_an_error():
    with pytest.raises(ValueError, match="`pairs` must be one of 'halves'"):
        rotate_pairs(noise(1, 2, 1, 4), noise(2, 2, 1, 4), "quarters")
