import itertools

import numpy as np
import pytest
from scipy.special import softmax

from keras_vit.layers import (
    MultiHeadSelfAttention,
    RelativePositionKeys,
    RelativePositionMlp,
    RelativePositionTable,
    TransformerBlock,
)
from keras_vit.layers.relative import pair_index
from keras_vit.layers.resize import resize_distances
from keras_vit.models.features import run_with_scores
from tests.layers.block_in_numpy import block_in_numpy
from tests.tiny import noise, randomize, to_numpy

GRID = (2, 3)
CELLS = [*itertools.product(range(2), range(3))]


def build(layer_class, **options):
    layer = layer_class(grid_size=GRID, num_heads=3, **options)
    layer(noise(1, 7, 12))
    return randomize(layer)


def test_the_table_has_a_number_for_each_distance():
    layer = build(RelativePositionTable)
    table = to_numpy(layer.table)  # (3 * 5 + 3, 3)
    bias = to_numpy(layer(noise(1, 7, 12)))[0]
    for (i, (y, x)), (j, (v, u)) in itertools.product(
        enumerate(CELLS), enumerate(CELLS)
    ):
        row = (y - v + 1) * 5 + (x - u + 2)
        np.testing.assert_array_equal(bias[:, 1 + i, 1 + j], table[row])
    np.testing.assert_array_equal(bias[:, 0, 1:], table[[15] * 6].T)
    np.testing.assert_array_equal(bias[:, 1:, 0], table[[16] * 6].T)
    np.testing.assert_array_equal(bias[:, 0, 0], table[17])


def test_without_prefix_tokens_there_are_no_rows_for_them():
    layer = build(RelativePositionTable, num_prefix_tokens=0)
    assert layer.table.shape == (15, 3)
    assert to_numpy(layer(noise(1, 6, 12))).shape == (1, 3, 6, 6)
    assert pair_index(GRID, 0).max() == 14


@pytest.mark.parametrize("prefix", [0, 2])
def test_the_mlp_reads_the_logarithm_of_the_distance(prefix):
    layer = build(RelativePositionMlp, hidden_dim=5, num_prefix_tokens=prefix)
    kernel1, bias1, kernel2, bias2 = layer.get_weights()
    found = to_numpy(layer(noise(1, 6 + prefix, 12)))[0]
    for (i, one), (j, other) in itertools.product(
        enumerate(CELLS), enumerate(CELLS)
    ):
        far = np.subtract(one, other).astype("float64")
        far = np.sign(far) * np.log(1 + np.abs(far))
        hidden = np.maximum(far @ kernel1 + bias1, 0)
        np.testing.assert_allclose(
            found[:, prefix + i, prefix + j],
            hidden @ kernel2 + bias2,
            atol=1e-5,
        )
    np.testing.assert_array_equal(found[:, :prefix], 0)
    np.testing.assert_array_equal(found[:, :, :prefix], 0)


def test_a_block_adds_them_to_its_products():
    x, bias = noise(2, 7, 12), noise(1, 3, 7, 7, seed=5)
    block = TransformerBlock(3, 20)
    block(x, bias=bias)
    randomize(block)
    np.testing.assert_allclose(
        to_numpy(block(x, bias=bias)),
        block_in_numpy(block, x, bias=bias[0]),
        atol=1e-5,
    )
    assert np.abs(to_numpy(block(x, bias=bias) - block(x))).max() > 0.01


def test_queries_are_multiplied_with_the_keys_of_differences():
    x = noise(2, 7, 12)
    keys = build(RelativePositionKeys)
    attention = MultiHeadSelfAttention(3)
    attention(x)
    randomize(attention)
    kernel, bias, *_ = (np.asarray(w, "float64") for w in attention.weights[:2])
    query, key, value = np.split(x @ kernel + bias, 3, axis=-1)
    table = to_numpy(keys.keys)  # (2 * 7 - 1, 4)
    y, scores = run_with_scores(attention, x, relative_keys=keys(x))
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        q, k = query[..., part], key[..., part]
        logits = np.empty((2, 7, 7))
        for i, j in itertools.product(range(7), range(7)):
            own = k[:, j] + table[i - j + 6]
            logits[:, i, j] = (q[:, i] * own).sum(-1) / 2  # 2 is the root of 4.
        np.testing.assert_allclose(
            to_numpy(scores)[:, head], softmax(logits, axis=-1), atol=1e-5
        )
    found = to_numpy(attention(x, relative_keys=keys(x)))
    np.testing.assert_allclose(found, to_numpy(y), atol=1e-5)
    assert np.abs(found - to_numpy(attention(x))).max() > 0.01


def test_a_resized_table_is_that_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    table = noise(5 * 7 + 3, 4)
    actual = resize_distances(table, (3, 4), (6, 2), "bicubic")
    grid = tf.image.resize(table[:35].reshape(1, 5, 7, 4), (11, 3), "bilinear")
    np.testing.assert_allclose(
        actual[:33], grid.numpy().reshape(33, 4), atol=1e-6
    )
    np.testing.assert_array_equal(actual[33:], table[35:])
    np.testing.assert_array_equal(
        resize_distances(table, (3, 4), (3, 4), "bicubic"), table
    )


@pytest.mark.parametrize("new", [(6, 5), (7, 9)])
def test_a_table_resized_as_in_timm_keeps_what_is_in_the_middle(new):
    """Near distances stay; a table of distances alone stays in their order."""
    table = noise(5 * 7 + 3, 4)
    actual = resize_distances(table, (3, 4), new, "bicubic_antialias")
    rows, columns = (2 * size - 1 for size in new)
    grid = actual[:-3].reshape(rows, columns, 4)
    old = table[:35].reshape(5, 7, 4)
    np.testing.assert_allclose(
        grid[rows // 2 - 1 : rows // 2 + 2, columns // 2],
        old[1:4, 3],
        atol=1e-6,
    )
    np.testing.assert_array_equal(actual[-3:], table[-3:])
    # The corners are the corners.
    np.testing.assert_allclose(grid[0, 0], old[0, 0], atol=1e-3)
    far = np.broadcast_to(np.arange(-2.0, 3)[:, None], (5, 7)).reshape(35, 1)
    far = np.concatenate([far, np.zeros((3, 1))])
    moved = resize_distances(far, (3, 4), new, "bicubic_antialias")
    assert (np.diff(moved[:-3].reshape(rows, columns), axis=0) >= 0).all()
