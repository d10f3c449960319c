"""The rules of resizing tables, patch kernels and channels, by other code."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_vit.layers.resize import (
    RESIZES,
    adapt_channels,
    inverse_patch_resize,
    read_position_grid,
    resize_grid,
    resize_patch_kernel,
    resize_position_grid,
    resize_positions,
)
from tests.tiny import noise, to_numpy

SIZES = range(1, 17)
each_rule = pytest.mark.parametrize("method", RESIZES)
# (old, new): to more and to fewer, by whole numbers and not.
PAIRS = [(1, 4), (2, 3), (4, 8), (7, 12), (14, 24), (5, 1), (6, 3), (24, 14)]
each_pair = pytest.mark.parametrize(("old", "new"), PAIRS)


def patch_matrix(method, new, old):
    """Return the matrix (new ** 2, old ** 2) that resizes a flat patch."""
    matrix = RESIZES[method](new, old)
    return np.kron(matrix, matrix)


# ------------------------------------------------------------------ the rules


@pytest.mark.parametrize("old", SIZES)
def test_official_is_a_formula_for_every_size(old):
    for new in SIZES:
        at = np.linspace(0, old - 1, new)
        expected = np.stack(
            [np.interp(at, np.arange(old), row) for row in np.eye(old)], axis=1
        )
        matrix = RESIZES["official"](new, old)
        np.testing.assert_allclose(matrix, expected, atol=1e-12)
        # A corner is a corner, to the last bit.
        np.testing.assert_array_equal(matrix[0], np.eye(old)[0])
        if new > 1:
            np.testing.assert_array_equal(matrix[-1], np.eye(old)[-1])


@each_pair
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("official", {"mode": "bilinear", "align_corners": True}),
        ("bilinear", {"mode": "bilinear"}),
        ("bicubic", {"mode": "bicubic"}),
        ("bicubic_antialias", {"mode": "bicubic", "antialias": True}),
    ],
)
def test_a_rule_is_interpolate_of_torch(old, new, method, options):
    torch = pytest.importorskip("torch")
    grid = noise(3, 1, old, old + 1)  # (N, C, H, W)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(grid), size=(new, new + 2), **options
    ).numpy()
    actual = np.einsum(
        "ih,nchw,jw->ncij",
        RESIZES[method](new, old),
        grid,
        RESIZES[method](new + 2, old + 1),
    )
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("sizes", [(5, 9), (12, 20), (7, 9), (7, 8)])
def test_bicubic_offset_is_that_of_dino(sizes):
    """Its code: scale_factor=(size + 0.1) / old, unless nothing changes."""
    torch = pytest.importorskip("torch")
    table = noise(7, 8, 3)
    factors = [(new + 0.1) / old for new, old in zip(sizes, (7, 8))]
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(table).permute(2, 0, 1)[None],
        scale_factor=factors,
        mode="bicubic",
    )
    expected = expected[0].permute(1, 2, 0).numpy()
    if sizes == (7, 8):
        expected = table
    resized = resize_grid(table, sizes, "bicubic_offset")
    np.testing.assert_allclose(resized, expected, atol=1e-5)
    by_layer = resize_position_grid(table, sizes, "bicubic_offset")
    np.testing.assert_allclose(to_numpy(by_layer), expected, atol=1e-5)
    # As in a graph that learns the sizes when it runs.
    rows, columns = map(ops.convert_to_tensor, sizes)
    places = np.stack(np.indices(sizes), axis=-1).reshape(1, -1, 2)
    read = read_position_grid(
        ops.convert_to_tensor(table),
        ops.convert_to_tensor(places.astype("float32")),
        ops.convert_to_tensor(np.array([[sizes]], "float32")),
        "bicubic_offset",
    )
    np.testing.assert_allclose(
        to_numpy(read)[0], expected.reshape(-1, 3), atol=1e-5
    )
    by_graph = resize_position_grid(table, (rows, columns), "bicubic_offset")
    np.testing.assert_allclose(to_numpy(by_graph), expected, atol=1e-5)


@each_pair
def test_bilinear_is_resize_of_tensorflow(old, new):
    tf = pytest.importorskip("tensorflow")
    image = noise(1, old, old + 1, 3)
    expected = tf.image.resize(image, (new, new + 2), "bilinear").numpy()
    actual = np.einsum(
        "ih,nhwc,jw->nijc",
        RESIZES["bilinear"](new, old),
        image,
        RESIZES["bilinear"](new + 2, old + 1),
    )
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@each_pair
def test_bicubic_antialias_is_resize_of_pillow(old, new):
    image_of = pytest.importorskip("PIL.Image").fromarray
    image = noise(old, old + 1)
    expected = np.asarray(image_of(image).resize((new + 2, new), 3))
    rule = RESIZES["bicubic_antialias"]
    actual = rule(new, old) @ image @ rule(new + 2, old + 1).T
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@each_rule
def test_every_row_sums_to_one_and_an_equal_size_is_the_identity(method):
    for old, new in itertools.product(SIZES, SIZES):
        matrix = RESIZES[method](new, old)
        assert matrix.shape == (new, old)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
        if old == new:
            np.testing.assert_allclose(matrix, np.eye(old), atol=1e-12)
    with pytest.raises(ValueError, match="`patch_resize` must be one of"):
        resize_patch_kernel(noise(2, 2, 1, 1), 4, "area")


@each_rule
@each_pair
def test_weights_of_tensors_are_rows_of_the_matrix(method, old, new):
    # As in a graph where the new size is known only when it runs, and for
    # images of different sizes in one batch.
    index = np.array([[0, new - 1], [new // 2, 0]], "float32")
    news = ops.convert_to_tensor(np.full((2, 1), new, "float32"))
    actual = RESIZES[method].weights(ops.convert_to_tensor(index), news, old)
    expected = RESIZES[method](new, old)[index.astype(int)]
    np.testing.assert_allclose(to_numpy(actual), expected, atol=1e-5)


# --------------------------------------------------------------- patch kernels


@each_rule
@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 7), (8, 14)])
def test_an_enlarged_patch_gives_the_same_token(method, old, new):
    kernel = noise(old, old, 3, 5)
    patch = noise(old, old, 3, seed=1)
    matrix = RESIZES[method](new, old)
    enlarged = np.einsum("ip,jq,pqc->ijc", matrix, matrix, patch)
    resized = resize_patch_kernel(kernel, new, method)
    assert resized.shape == (new, new, 3, 5)
    assert resized.dtype == kernel.dtype
    np.testing.assert_allclose(
        np.einsum("ijc,ijcd->d", enlarged, resized),
        np.einsum("pqc,pqcd->d", patch, kernel),
        atol=1e-4,
    )


@each_rule
@pytest.mark.parametrize(("old", "new"), [(3, 5), (5, 3), (8, 4)])
def test_a_kernel_is_the_best_there_is(method, old, new):
    # Of patches of white noise: the least squares over whole patches, with
    # nothing known of rows and columns.
    kernel = noise(old, old, 2, 3).astype("float64")
    whole = patch_matrix(method, new, old)
    expected = np.linalg.lstsq(whole.T, kernel.reshape(old * old, -1))[0]
    actual = resize_patch_kernel(kernel, new, method)
    np.testing.assert_allclose(
        actual, expected.reshape(new, new, 2, 3), atol=1e-10
    )


def test_the_inverse_of_a_patch_resize_by_hand():
    # From 2 to 4 pixels, and back: worked out on paper for bilinear patches.
    np.testing.assert_allclose(
        inverse_patch_resize(4, 2, "bilinear"),
        [[0.65, -0.15], [0.45, 0.05], [0.05, 0.45], [-0.15, 0.65]],
    )
    # Fewer pixels: the sums of neighbours.
    kernel = np.arange(16.0).reshape(4, 4, 1, 1)
    np.testing.assert_allclose(
        resize_patch_kernel(kernel, 2, "bilinear")[..., 0, 0],
        [[10, 18], [42, 50]],
    )


# ------------------------------------------------------------- position tables


@each_rule
@pytest.mark.parametrize("new", [(3, 3), (5, 2), (4, 6)])
def test_positions_are_resized_along_rows_and_columns(method, new):
    table = noise(15, 2)
    actual = resize_positions(table, (3, 5), new, method)
    grid = table.reshape(3, 5, 2)
    for axis, size in enumerate(new):
        # Some cut the positions out of a square.
        whole = max(new) if method.endswith("_square") else size
        # DINO moves them a little.
        whole += 0.1 if method == "bicubic_offset" else 0
        matrix = RESIZES[method](size, grid.shape[axis], whole)
        grid = np.apply_along_axis(lambda row, m=matrix: m @ row, axis, grid)
    np.testing.assert_allclose(actual, grid.reshape(-1, 2), atol=1e-6)


@each_rule
@pytest.mark.parametrize("num_prefix", [0, 2])
def test_rows_before_the_grid_stay(method, num_prefix):
    table = noise(num_prefix + 6, 4)
    actual = resize_positions(table, (2, 3), (4, 5), method)
    assert actual.shape == (num_prefix + 20, 4)
    np.testing.assert_array_equal(actual[:num_prefix], table[:num_prefix])
    # And they have no part in the rest.
    without = resize_positions(table[num_prefix:], (2, 3), (4, 5), method)
    np.testing.assert_array_equal(actual[num_prefix:], without)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_table_keeps_its_type_and_its_numbers(dtype):
    table = noise(7, 4).astype(dtype)
    before = table.copy()
    table.flags.writeable = False
    for new in ([2, 3], (3, 2)):
        actual = resize_positions(table, (2, 3), new, "bicubic")
        assert actual.dtype == dtype
    same = resize_positions(table, (2, 3), (2, 3), "bicubic")
    np.testing.assert_array_equal(same, table)
    np.testing.assert_array_equal(table, before)


def test_an_unknown_rule_is_an_error_even_if_nothing_is_resized():
    with pytest.raises(ValueError, match="`position_resize` must be one of"):
        resize_positions(noise(4, 2), (2, 2), (2, 2), "nearest")


# -------------------------------------------------------------------- channels


def test_channels_are_repeated_in_turn_and_scaled():
    kernel = noise(4, 4, 3, 5)
    adapted = adapt_channels(kernel, 5)
    assert adapted.shape == (4, 4, 5, 5)
    for channel, source in enumerate([0, 1, 2, 0, 1]):
        np.testing.assert_allclose(
            adapted[:, :, channel], kernel[:, :, source] * 0.6, rtol=1e-6
        )


# Also a grey image in the place of its copies.
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_equal_channels_keep_their_sum_and_the_kernel_its_type(channels):
    # Where all channels are the same, any number of them sums to as much.
    kernel = np.repeat(noise(2, 2, 1, 4), 3, axis=2)
    before = kernel.copy()
    adapted = adapt_channels(kernel, channels)
    assert adapted.dtype == kernel.dtype
    np.testing.assert_allclose(
        adapted.sum(axis=2), kernel.sum(axis=2), atol=1e-5
    )
    np.testing.assert_array_equal(kernel, before)
