import pathlib

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers import (
    POSITION_EMBEDDINGS,
    LearnedPositionEmbedding,
    LearnedPositionEmbedding2D,
    SinCosPositionEmbedding,
    SinCosPositionEmbedding2D,
    resize_position_grid,
)
from keras_vit.layers.resize import read_position_grid
from tests.tiny import noise, randomize, tensorflow_only, to_numpy

GOLDEN = np.load(
    pathlib.Path(__file__).parents[1] / "golden" / "position_resize.npz"
)
GOLDEN_SIZES = sorted({key.split("/")[0] for key in GOLDEN.files})
KINDS = {k: v for k, v in POSITION_EMBEDDINGS.items() if v is not None}
each_kind = pytest.mark.parametrize("layer_class", KINDS.values(), ids=KINDS)


def table_of(layer, width):
    """Return the rows (T, D) that the layer adds."""
    length = layer.num_prefix_tokens + np.prod(layer.grid_size)
    return to_numpy(layer(np.zeros((1, length, width), "float32")))[0]


def build(layer_class, grid_size, width=8, prefix=1, **kwargs):
    layer = layer_class(grid_size, num_prefix_tokens=prefix, **kwargs)
    layer(np.zeros((1, prefix + np.prod(grid_size), width), "float32"))
    return randomize(layer)


@each_kind
def test_the_table_is_added_to_every_image(layer_class):
    layer = build(layer_class, (2, 3))
    x = noise(4, 7, 8)
    expected = x + table_of(layer, 8)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-6)


def test_learned_adds_its_weight():
    layer = build(LearnedPositionEmbedding, (2, 3))
    (weight,) = layer.get_weights()
    assert weight.shape == (7, 8)
    np.testing.assert_array_equal(table_of(layer, 8), weight)


def test_learned_2d_is_columns_beside_rows():
    layer = build(LearnedPositionEmbedding2D, (2, 3))
    by_name = {weight.name: to_numpy(weight) for weight in layer.weights}
    assert by_name["rows"].shape == (2, 4)
    assert by_name["columns"].shape == (3, 4)
    table = table_of(layer, 8)
    np.testing.assert_array_equal(table[0], np.zeros(8))
    for y in range(2):
        for x in range(3):
            np.testing.assert_array_equal(
                table[1 + 3 * y + x],
                [*by_name["columns"][x], *by_name["rows"][y]],
            )


def test_sincos_1d_closed_form():
    layer = build(SinCosPositionEmbedding, (2, 3), width=6)
    for p, row in enumerate(table_of(layer, 6)):
        for i in range(3):
            angle = p / 10_000 ** (2 * i / 6)
            np.testing.assert_allclose(row[2 * i], np.sin(angle), atol=1e-6)
            np.testing.assert_allclose(row[2 * i + 1], np.cos(angle), atol=1e-6)


def test_sincos_2d_known_row():
    # Big_vision's value for D=8 at y=0, x=1.
    layer = build(SinCosPositionEmbedding2D, (1, 2), width=8, prefix=0)
    np.testing.assert_allclose(
        table_of(layer, 8)[1],
        [0.841471, 1e-4, 0.540302, 1.0, 0, 0, 1, 1],
        atol=1e-6,
    )


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_sincos_2d_closed_form(prefix):
    layer = build(SinCosPositionEmbedding2D, (2, 3), width=12, prefix=prefix)
    table = table_of(layer, 12)
    np.testing.assert_array_equal(table[:prefix], np.zeros((prefix, 12)))
    omega = 10_000.0 ** (-np.arange(3) / 2)
    for y in range(2):
        for x in range(3):
            expected = [
                *np.sin(x * omega),
                *np.cos(x * omega),
                *np.sin(y * omega),
                *np.cos(y * omega),
            ]
            np.testing.assert_allclose(
                table[prefix + 3 * y + x], expected, atol=1e-6
            )


def test_sincos_2d_of_the_smallest_width_has_no_nan():
    # The formula divides by q - 1, which is 0 here.
    layer = build(SinCosPositionEmbedding2D, (2, 2), width=4)
    assert np.isfinite(table_of(layer, 4)).all()


@pytest.mark.parametrize("name", GOLDEN_SIZES)
def test_learned_resizes_as_the_official_loader(name):
    old_size, new_size = (
        tuple(map(int, size.split("x"))) for size in name.split("_to_")
    )
    source = build(LearnedPositionEmbedding, old_size)
    source.embedding.assign(GOLDEN[f"{name}/table"])
    target = build(LearnedPositionEmbedding, new_size)
    target.resize_from(source)
    np.testing.assert_allclose(
        to_numpy(target.embedding), GOLDEN[f"{name}/expected"], atol=5e-6
    )


def test_resized_corners_are_aligned():
    # 3 rows to 5: half-pixel sampling would say 0, 0.4, 1, 1.6, 2.
    actual = resize_position_grid(np.arange(3, dtype="float32"), (5,))
    np.testing.assert_allclose(to_numpy(actual), [0, 0.5, 1, 1.5, 2])


@pytest.mark.parametrize(
    ("old", "new"),
    [((28, 28), (24, 24)), ((16, 16), (30, 32)), ((3, 5), (7, 2))],
)
def test_resized_table_equals_a_formula_for_every_size(old, new):
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
    actual = to_numpy(resize_position_grid(table, new))
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_array_equal(actual[-1, -1], table[-1, -1])


@pytest.mark.parametrize("sizes", [(4, 6), (np.int64(4), np.int64(6))])
def test_an_equal_size_gives_the_same_numbers(sizes):
    table = noise(4, 6, 2)
    actual = to_numpy(resize_position_grid(table, sizes))
    np.testing.assert_array_equal(actual, table)


@pytest.mark.parametrize("old", [1, 5])
def test_a_table_of_one_row_and_to_one_row(old):
    table = noise(old, 2)
    for size in (1, 3):
        expected = table[
            np.zeros(size, int) if old == 1 or size == 1 else [0, 2, 4]
        ]
        actual = to_numpy(resize_position_grid(table, (size,)))
        np.testing.assert_allclose(actual, expected, atol=1e-6)


@each_kind
def test_resize_from_leaves_the_prefix_and_the_source(layer_class):
    source = build(layer_class, (2, 3))
    before = source.get_weights()
    target = build(layer_class, (4, 2))
    target.resize_from(source)
    for old, new in zip(before, source.get_weights()):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(
        table_of(target, 8)[0], table_of(source, 8)[0]
    )


@each_kind
def test_another_size_in_the_call_equals_a_resized_layer(layer_class):
    kept = build(layer_class, (2, 3), patch_size=4)
    tokens = noise(2, 1 + 5 * 2, 8)
    resized = build(layer_class, (5, 2))
    resized.resize_from(kept)
    np.testing.assert_allclose(
        to_numpy(kept(tokens, features=noise(2, 20, 8, 3))),
        to_numpy(resized(tokens)),
        atol=1e-6,
    )


@tensorflow_only
@each_kind
def test_an_open_size_in_a_graph_equals_the_eager_call(layer_class):
    import tensorflow as tf

    layer = build(layer_class, (2, 3), patch_size=4)
    graph = tf.function(
        lambda tokens, images: layer(tokens, images),
        input_signature=[
            tf.TensorSpec((None, None, 8)),
            tf.TensorSpec((None, None, None, 3)),
        ],
    )
    for h, w in ((2, 3), (5, 2)):
        tokens = noise(2, 1 + h * w, 8)
        images = noise(2, 4 * h, 4 * w, 3)
        np.testing.assert_allclose(
            to_numpy(graph(tokens, images)),
            to_numpy(layer(tokens, images)),
            atol=1e-6,
        )


@each_kind
def test_a_wrong_number_of_tokens_is_an_error(layer_class):
    with pytest.raises(
        ValueError,
        match=r"7 in all. Received: 8 tokens, grid_size=\(2, 3\), "
        "num_prefix_tokens=1",
    ):
        layer_class((2, 3))(noise(1, 8, 8))


@each_kind
@pytest.mark.parametrize("length", [1, 8])
def test_a_wrong_number_of_tokens_is_an_error_once_built(layer_class, length):
    # A single token would be broadcast to all the rows of the table.
    layer = build(layer_class, (2, 3))
    with pytest.raises(ValueError, match="7 in all|incompatible"):
        layer(noise(2, length, 8))


@pytest.mark.parametrize(
    ("layer_class", "divisor"),
    [
        (LearnedPositionEmbedding2D, 2),
        (SinCosPositionEmbedding, 2),
        (SinCosPositionEmbedding2D, 4),
    ],
)
def test_a_width_that_cannot_be_divided_is_an_error(layer_class, divisor):
    width = 3 * divisor - 1
    with pytest.raises(
        ValueError,
        match=f"must be a multiple of {divisor} for this position embedding. "
        f"Received: width={width}",
    ):
        layer_class((2, 3))(noise(1, 7, width))


@each_kind
def test_the_mask_of_the_tokens_is_passed_on(layer_class):
    layer = layer_class((2, 3))
    mask = np.ones((2, 7), bool)
    assert layer.supports_masking
    assert layer.compute_mask(noise(2, 7, 8), mask) is mask


def test_every_public_position_embedding_is_in_the_table():
    public = {
        member
        for name, member in vars(layers).items()
        if name.endswith(("PositionEmbedding", "PositionEmbedding2D"))
    }
    assert public == set(KINDS.values())


@each_kind
def test_mixed_precision_computes_the_table_in_float32(layer_class):
    # Positions above 256 are not bfloat16 numbers: neighbours would share a
    # row if the angles were computed in it.
    layer = layer_class((1, 400), num_prefix_tokens=0, dtype="mixed_bfloat16")
    y = to_numpy(layer(np.zeros((1, 400, 8), "float32")))[0]
    reference = layer_class((1, 400), num_prefix_tokens=0)
    reference(np.zeros((1, 400, 8), "float32"))
    reference.set_weights(layer.get_weights())
    np.testing.assert_allclose(y, table_of(reference, 8), atol=2**-8)


@pytest.mark.parametrize("sizes", [(2, 3), (5, 3), (4, 2), (3, 3)])
def test_a_rectangle_is_cut_out_of_a_resized_square(sizes):
    """The rule of RADIO, also at single places and for unknown sizes."""
    table = noise(4, 4, 6)
    side = max(sizes)
    square = to_numpy(resize_position_grid(table, (side, side), "bilinear"))
    expected = square[: sizes[0], : sizes[1]]
    rule = "bilinear_square"
    actual = to_numpy(resize_position_grid(table, sizes, rule))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    places = np.float32([[[1, 0], [1, 2], [0, 1]]])
    if sizes[1] > 2:
        tensors = (table, places, np.float32(sizes)[None, None])
        tensors = map(keras.ops.convert_to_tensor, tensors)
        found = read_position_grid(*tensors, rule)
        chosen = expected[[1, 1, 0], [0, 2, 1]]
        np.testing.assert_allclose(to_numpy(found)[0], chosen, atol=1e-6)
