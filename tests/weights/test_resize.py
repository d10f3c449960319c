"""Resizing of position tables and channels, against others."""

import pathlib

import numpy as np
import pytest

from keras_vit.layers.resize import (
    RESIZES,
    adapt_channels,
    resize_position_grid,
    resize_positions,
)
from tests.tiny import noise, to_numpy

GOLDEN = np.load(
    pathlib.Path(__file__).parents[1] / "golden" / "position_resize.npz"
)
GOLDEN_SIZES = sorted({key.split("/")[0] for key in GOLDEN.files})
each_rule = pytest.mark.parametrize("method", RESIZES)


def grid_of(text):
    return tuple(int(side) for side in text.split("x"))


# ------------------------------------------------------------- position tables


@pytest.mark.parametrize("sizes", GOLDEN_SIZES)
def test_positions_are_resized_as_by_the_official_loader(sizes):
    old, new = map(grid_of, sizes.split("_to_"))
    actual = resize_positions(GOLDEN[f"{sizes}/table"], old, new, "official")
    expected = GOLDEN[f"{sizes}/expected"]
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("new", [(1, 1), (2, 9), (5, 3), (7, 7), (24, 20)])
def test_official_is_what_the_layer_does(new):
    table = noise(3, 5, 4)
    expected = to_numpy(resize_position_grid(table, new)).reshape(-1, 4)
    actual = resize_positions(table.reshape(-1, 4), (3, 5), new, "official")
    np.testing.assert_allclose(actual, expected, atol=1e-6)


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


def test_an_unknown_rule_of_positions_is_an_error_even_if_nothing_is_resized():
    with pytest.raises(ValueError) as error:
        resize_positions(noise(4, 2), (2, 2), (2, 2), "nearest")
    assert "`position_resize` must be one of" in str(error.value)


# -------------------------------------------------------------------- channels


def convolve(image, kernel):
    """Return the token of a patch: image (P, P, C), kernel (P, P, C, D)."""
    return np.einsum("pqc,pqcd->d", image, kernel)


def test_a_grey_image_gives_what_its_copies_gave():
    kernel, grey = noise(4, 4, 3, 5), noise(4, 4, 1, seed=1)
    adapted = adapt_channels(kernel, 1)
    assert adapted.shape == (4, 4, 1, 5)
    np.testing.assert_allclose(
        convolve(grey, adapted),
        convolve(np.repeat(grey, 3, axis=2), kernel),
        atol=1e-5,
    )


def test_channels_are_repeated_in_turn_and_scaled():
    kernel = noise(4, 4, 3, 5)
    adapted = adapt_channels(kernel, 5)
    assert adapted.shape == (4, 4, 5, 5)
    for channel, source in enumerate([0, 1, 2, 0, 1]):
        np.testing.assert_allclose(
            adapted[:, :, channel], kernel[:, :, source] * 0.6, rtol=1e-6
        )


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
