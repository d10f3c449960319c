"""Positions of grids: other sizes, and the golden files of resized tables."""

import itertools
import pathlib

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers import LearnedPositionEmbedding, resize_position_grid
from keras_vit.layers.relative import pair_index
from keras_vit.layers.resize import read_position_grid, resize_distances
from tests.layers.cases import CASES
from tests.tiny import noise, randomize, tensorflow_only, to_numpy

GOLDEN = np.load(
    pathlib.Path(__file__).parents[1] / "golden" / "position_resize.npz"
)
GOLDEN_SIZES = sorted({key.split("/")[0] for key in GOLDEN.files})
EMBEDDINGS = [name for name, row in layers.POSITION_EMBEDDINGS.items() if row]
ROTARY = [name for name, row in layers.ROTARY_POSITIONS.items() if row]
each_embedding = pytest.mark.parametrize("name", EMBEDDINGS)
# Those that a call may tell the size of the images.
each_of_any_size = pytest.mark.parametrize("name", [*EMBEDDINGS, *ROTARY])


def build(name, grid_size=(2, 3), prefix=1, width=8, **options):
    """Return a layer, by its key in a table."""
    tables = (layers.POSITION_EMBEDDINGS, layers.ROTARY_POSITIONS)
    tables = {**layers.RELATIVE_POSITIONS, **tables[0], **tables[1]}
    case = next(c for c in CASES.values() if c.layer_class is tables[name])
    options = {**case.kwargs, "grid_size": grid_size, **options}
    options["num_prefix_tokens"] = prefix
    layer = case.layer_class(**options)
    layer(tokens_of(grid_size, prefix, width))
    return randomize(layer)


def tokens_of(grid_size, prefix=1, width=8, batch=1):
    return noise(batch, prefix + np.prod(grid_size), width)


@each_of_any_size
def test_another_size_in_the_call_is_a_layer_of_that_size(name):
    layer, other = (
        build(name, grid, patch_size=4) for grid in ((2, 3), (5, 2))
    )
    if name in EMBEDDINGS:
        other.resize_from(layer)
    else:
        other.set_weights(layer.get_weights())
    tokens = tokens_of((5, 2), batch=2)
    np.testing.assert_allclose(
        to_numpy(layer(tokens, features=noise(2, 20, 8, 3))),
        to_numpy(other(tokens)),
        atol=1e-6,
    )


@tensorflow_only
@each_of_any_size
def test_an_open_size_in_a_graph_equals_the_eager_call(name):
    import tensorflow as tf

    layer = build(name, patch_size=4)
    graph = tf.function(
        lambda tokens, images: layer(tokens, images),
        input_signature=[
            tf.TensorSpec((None, None, 8)),
            tf.TensorSpec((None, None, None, 3)),
        ],
    )
    for h, w in ((2, 3), (5, 2)):
        tokens = tokens_of((h, w), batch=2)
        images = noise(2, 4 * h, 4 * w, 3)
        np.testing.assert_allclose(
            to_numpy(graph(tokens, images)),
            to_numpy(layer(tokens, images)),
            atol=1e-5,
        )


@each_embedding
def test_resize_from_leaves_the_prefix_and_the_source(name):
    source, target = build(name), build(name, (4, 2))
    before = source.get_weights()
    target.resize_from(source)
    np.testing.assert_equal(source.get_weights(), before)
    first, second = (
        to_numpy(layer(0 * tokens_of(layer.grid_size)))[0, 0]
        for layer in (source, target)
    )
    np.testing.assert_array_equal(first, second)


@each_embedding
def test_what_does_not_fit_is_an_error(name):
    layer_class = layers.POSITION_EMBEDDINGS[name]
    # A single token would be broadcast to all the rows of the table.
    for length in (1, 8):
        with pytest.raises(ValueError, match=f"7 in all. Received: {length} "):
            layer_class((2, 3))(noise(1, length, 8))
    divisor = layer_class.width_divisor
    if divisor > 1:
        width = 3 * divisor - 1
        with pytest.raises(ValueError, match=f"{divisor}.*width={width}"):
            layer_class((2, 3))(noise(1, 7, width))


@each_embedding
def test_the_mask_of_the_tokens_is_passed_on(name):
    layer, mask = build(name), np.ones((2, 7), bool)
    assert layer.supports_masking
    assert layer.compute_mask(noise(2, 7, 8), mask) is mask


def test_the_smallest_width_has_no_nan():
    # The formula divides by q - 1, which is 0 here.
    layer = build("sincos_2d", width=4)
    assert np.isfinite(to_numpy(layer(tokens_of((2, 3), width=4)))).all()


def test_heads_of_an_odd_number_of_pairs_are_an_error():
    with pytest.raises(ValueError, match="multiple of 4.*head_size=6"):
        layers.AxialRotaryPositions(grid_size=(2, 3), head_size=6)
    with pytest.raises(ValueError, match="`axes` must be one of 'yx', 'xy'"):
        layers.AxialRotaryPositions(axes="z", grid_size=(2, 3), head_size=8)


@pytest.mark.parametrize("pairs", layers.rotary.PAIRS)
def test_the_product_depends_on_the_difference_of_the_angles(pairs):
    """The purpose of rotary positions (Su et al. 2021, eq. 14)."""
    x, angles = noise(1, 5, 3, 8), noise(5, 3, 4, seed=3)
    repeat = np.repeat if pairs == "neighbours" else np.tile
    counts = (2, -1) if pairs == "neighbours" else ((1, 1, 2),)

    def products(angles):
        angles = repeat(angles, *counts)
        rotation = np.stack([np.cos(angles), np.sin(angles)])
        turned = to_numpy(layers.rotary.rotate_pairs(x, rotation, pairs))
        return np.einsum("btke,bske->bkts", turned, turned)

    shifted = angles + noise(1, 3, 4, seed=4)  # The same for every token.
    np.testing.assert_allclose(products(angles), products(shifted), atol=1e-5)


# Resized tables.


@pytest.mark.parametrize("name", GOLDEN_SIZES)
def test_learned_resizes_as_the_official_loader(name):
    old_size, new_size = (
        tuple(map(int, size.split("x"))) for size in name.split("_to_")
    )
    source, target = (
        LearnedPositionEmbedding(size) for size in (old_size, new_size)
    )
    for layer in (source, target):
        width = GOLDEN[f"{name}/table"].shape[-1]
        layer.build((None, 1 + np.prod(layer.grid_size), width))
    source.embedding.assign(GOLDEN[f"{name}/table"])
    target.resize_from(source)
    np.testing.assert_allclose(
        to_numpy(target.embedding), GOLDEN[f"{name}/expected"], atol=5e-6
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((28, 28), (24, 24)),
        ((16, 16), (30, 32)),
        ((3, 5), (7, 2)),
        ((1, 4), (3, 1)),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_resized_table_equals_a_formula_for_every_size(old, new, is_known):
    # Scipy writes zeros into the last row and column for 28 to 24 and 16 to
    # 30; the last row must be the last row.
    table = noise(*old, 2)
    expected = table
    for axis, size in enumerate(new):
        at = np.linspace(0, old[axis] - 1, size)
        expected = np.apply_along_axis(
            lambda row, at=at: np.interp(at, np.arange(len(row)), row),
            axis,
            expected,
        )
    if not is_known:  # As in a graph that learns the sizes when it runs.
        new = tuple(map(keras.ops.convert_to_tensor, new))
    actual = to_numpy(resize_position_grid(table, new))
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("sizes", [(4, 6), (np.int64(4), np.int64(6))])
def test_an_equal_size_gives_the_same_numbers(sizes):
    table = noise(4, 6, 2)
    actual = resize_position_grid(table, sizes)
    np.testing.assert_allclose(to_numpy(actual), table, rtol=0, atol=1e-6)


@each_embedding
def test_positions_beyond_256_are_exact_under_bfloat16(name):
    # Whole numbers above 256 have no place in bfloat16: angles would repeat.
    layer, reference = (
        layers.POSITION_EMBEDDINGS[name](
            (1, 400), num_prefix_tokens=0, dtype=dtype
        )
        for dtype in ("mixed_bfloat16", "float32")
    )
    y = to_numpy(layer(np.zeros((1, 400, 8), "float32")))
    reference.build((1, 400, 8))
    reference.set_weights(layer.get_weights())
    expected = to_numpy(reference(np.zeros((1, 400, 8), "float32")))
    np.testing.assert_allclose(y, expected, atol=2**-8)


@pytest.mark.parametrize("sizes", [(2, 3), (5, 3), (4, 2), (3, 3)])
def test_a_rectangle_is_cut_out_of_a_resized_square(sizes):
    """The rule of RADIO, also at single places and for unknown sizes."""
    table, rule, side = noise(4, 4, 6), "bilinear_square", max(sizes)
    square = to_numpy(resize_position_grid(table, (side, side), "bilinear"))
    expected = square[: sizes[0], : sizes[1]]
    actual = to_numpy(resize_position_grid(table, sizes, rule))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    places = np.stack(np.indices(sizes), -1).reshape(1, -1, 2)
    tensors = (table, np.float32(places), np.float32(sizes)[None, None])
    found = read_position_grid(*map(keras.ops.convert_to_tensor, tensors), rule)
    np.testing.assert_allclose(
        to_numpy(found)[0], expected.reshape(-1, 6), atol=1e-6
    )


# Tables of distances.


def test_rows_of_pairs_of_tokens():
    assert pair_index((1, 2), 1).tolist() == [[5, 3, 3], [4, 1, 0], [4, 2, 1]]
    assert build("table", prefix=0).table.shape == (15, 3)


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
    grid, old = (
        actual[:-3].reshape(rows, columns, 4),
        table[:35].reshape(5, 7, 4),
    )
    middle = slice(rows // 2 - 1, rows // 2 + 2)
    np.testing.assert_allclose(
        grid[middle, columns // 2], old[1:4, 3], atol=1e-6
    )
    np.testing.assert_array_equal(actual[-3:], table[-3:])
    # The corners are the corners.
    for i, j in itertools.product((0, -1), repeat=2):
        np.testing.assert_allclose(grid[i, j], old[i, j], atol=1e-3)
    far = np.broadcast_to(np.arange(-2.0, 3)[:, None], (5, 7)).reshape(35, 1)
    far = np.concatenate([far, np.zeros((3, 1))])
    moved = resize_distances(far, (3, 4), new, "bicubic_antialias")
    assert (np.diff(moved[:-3].reshape(rows, columns), axis=0) >= 0).all()
