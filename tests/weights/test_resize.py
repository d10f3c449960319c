"""Resizing of position tables, patch kernels and channels, against others."""

import itertools
import math
import pathlib

import numpy as np
import pytest

from keras_vit.layers.position_grid import resize_position_grid
from keras_vit.weights.resize import (
    RESIZES,
    adapt_channels,
    official_matrix,
    resize_patch_kernel,
    resize_positions,
)
from tests.tiny import noise, to_numpy

GOLDEN = np.load(
    pathlib.Path(__file__).parents[1] / "golden" / "position_resize.npz"
)
GOLDEN_SIZES = sorted({key.split("/")[0] for key in GOLDEN.files})
SIZES = range(1, 25)
each_rule = pytest.mark.parametrize("method", RESIZES)
# (old, new): to more and to fewer, by whole numbers and not.
PAIRS = [(1, 4), (2, 3), (4, 8), (7, 12), (14, 24), (5, 1), (6, 3), (24, 14)]
each_pair = pytest.mark.parametrize(("old", "new"), PAIRS)


def grid_of(text):
    return tuple(int(side) for side in text.split("x"))


def patch_matrix(method, new, old):
    """Return the matrix (new ** 2, old ** 2) that resizes a flat patch."""
    matrix = RESIZES[method](new, old)
    return np.kron(matrix, matrix)


# ------------------------------------------------------------------ the rules


def test_the_rules_are_those_of_the_documentation():
    assert list(RESIZES) == [
        "official",
        "bilinear",
        "bicubic",
        "bicubic_antialias",
        "bilinear_antialias",
    ]


@pytest.mark.parametrize("old", SIZES)
def test_official_is_zoom_of_scipy(old):
    zoom = pytest.importorskip("scipy.ndimage").zoom
    rows = np.eye(old)
    for new in SIZES:
        # mode="nearest": with its default scipy writes zeros into the last
        # row for some sizes, such as 7 to 4.
        expected = zoom(rows, (new / old, 1), order=1, mode="nearest")
        assert expected.shape == (new, old)
        np.testing.assert_allclose(
            official_matrix(new, old), expected, atol=1e-12, err_msg=f"{new}"
        )


@pytest.mark.parametrize("old", SIZES)
def test_official_is_a_formula_for_every_size(old):
    for new in SIZES:
        at = np.linspace(0, old - 1, new)
        expected = np.stack(
            [np.interp(at, np.arange(old), row) for row in np.eye(old)], axis=1
        )
        matrix = official_matrix(new, old)
        np.testing.assert_allclose(matrix, expected, atol=1e-12)
        # A corner is a corner, to the last bit.
        np.testing.assert_array_equal(matrix[0], np.eye(old)[0])
        if new > 1:
            np.testing.assert_array_equal(matrix[-1], np.eye(old)[-1])


@each_pair
def test_bilinear_is_a_formula(old, new):
    # Half-pixel centres: sample i of `new` lies at (i + 1/2) old / new - 1/2,
    # between its two neighbours; beyond the border is the border.
    expected = np.zeros((new, old))
    for i in range(new):
        at = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
        low = math.floor(at)
        expected[i, low] += 1 - (at - low)
        expected[i, min(low + 1, old - 1)] += at - low
    matrix = RESIZES["bilinear"](new, old)
    np.testing.assert_allclose(matrix, expected, atol=1e-12)


def test_bilinear_from_two_to_four_by_hand():
    np.testing.assert_allclose(
        RESIZES["bilinear"](4, 2),
        [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]],
    )


def test_bicubic_from_two_to_four_by_hand():
    # Keys' kernel with a = -3/4 at 0.25, 0.75, 1.25 and 1.75; what lies
    # beyond the border is added to the border.
    near, mid, far, last = 0.87890625, 0.26171875, -0.10546875, -0.03515625
    first, second = mid + last + near, far
    np.testing.assert_allclose(near + mid + far + last, 1)
    matrix = RESIZES["bicubic"](4, 2)
    np.testing.assert_allclose(matrix[1], [near + far, mid + last])
    # Row 0 lies 0.25 before pixel 0.
    np.testing.assert_allclose(matrix[0], [first, second])
    np.testing.assert_allclose(matrix[::-1, ::-1], matrix)


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
def test_every_row_sums_to_one(method):
    for old, new in itertools.product(SIZES, SIZES):
        matrix = RESIZES[method](new, old)
        assert matrix.shape == (new, old)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)


@each_rule
def test_an_equal_size_is_the_identity(method):
    for size in SIZES:
        np.testing.assert_allclose(
            RESIZES[method](size, size), np.eye(size), atol=1e-12
        )


@each_rule
def test_a_rule_has_no_left_and_no_right(method):
    for old, new in itertools.product(SIZES, SIZES):
        if method == "official" and new == 1:
            continue  # It reads the first row.
        matrix = RESIZES[method](new, old)
        np.testing.assert_allclose(matrix[::-1, ::-1], matrix, atol=1e-12)


# Keys' kernel keeps ramps with a = -1/2 only, PyTorch's has a = -3/4; and
# kernels that are stretched and sampled keep them nearly.
@pytest.mark.parametrize(
    ("method", "atol"),
    [("bilinear", 1e-12), ("bicubic", 0.1), ("bicubic_antialias", 0.02)],
)
@pytest.mark.parametrize(("old", "new"), [(8, 20), (12, 9), (16, 8)])
def test_a_ramp_stays_a_ramp_inside(method, atol, old, new):
    ramp = RESIZES[method](new, old) @ np.arange(old)
    at = (np.arange(new) + 0.5) * old / new - 0.5
    reach = 2 * max(old / new, 1)  # Of the kernel, in rows.
    inner = (at >= reach) & (at <= old - 1 - reach)
    assert inner.sum() >= 4
    np.testing.assert_allclose(ramp[inner], at[inner], rtol=0, atol=atol)


@pytest.mark.parametrize(("old", "new"), [(8, 20), (12, 9), (2, 24)])
def test_official_keeps_a_ramp_to_the_border(old, new):
    ramp = official_matrix(new, old) @ np.arange(old)
    np.testing.assert_allclose(ramp, np.linspace(0, old - 1, new), atol=1e-12)


def test_the_rules_differ():
    for one, other in itertools.combinations(RESIZES, 2):
        # Antialiasing matters if positions become fewer.
        matrix = RESIZES[one](4, 6)
        assert np.abs(matrix - RESIZES[other](4, 6)).max() > 0.01


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
        matrix = RESIZES[method](size, grid.shape[axis])
        grid = np.apply_along_axis(lambda row, m=matrix: m @ row, axis, grid)
    np.testing.assert_allclose(actual, grid.reshape(-1, 2), atol=1e-6)


@each_rule
@pytest.mark.parametrize("num_prefix", [0, 1, 2])
def test_rows_before_the_grid_stay(method, num_prefix):
    table = noise(num_prefix + 6, 4)
    actual = resize_positions(table, (2, 3), (4, 5), method)
    assert actual.shape == (num_prefix + 20, 4)
    np.testing.assert_array_equal(actual[:num_prefix], table[:num_prefix])
    # And they have no part in the rest.
    without = resize_positions(table[num_prefix:], (2, 3), (4, 5), method)
    np.testing.assert_array_equal(actual[num_prefix:], without)


@each_rule
def test_equal_grids_give_the_same_numbers(method):
    table = noise(7, 4)
    actual = resize_positions(table, (2, 3), [2, 3], method)
    np.testing.assert_array_equal(actual, table)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_table_keeps_its_type_and_its_numbers(dtype):
    table = noise(7, 4).astype(dtype)
    before = table.copy()
    table.flags.writeable = False
    for new in ((2, 3), (3, 2), (4, 4)):
        actual = resize_positions(table, (2, 3), new, "bicubic")
        assert actual.dtype == dtype
    np.testing.assert_array_equal(table, before)


def test_an_unknown_rule_of_positions_is_an_error_even_if_nothing_is_resized():
    with pytest.raises(ValueError) as error:
        resize_positions(noise(4, 2), (2, 2), (2, 2), "nearest")
    assert str(error.value) == (
        "`position_resize` must be one of 'official', 'bilinear', 'bicubic', "
        "'bicubic_antialias', 'bilinear_antialias'. Received: "
        "position_resize='nearest'"
    )


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


@each_rule
def test_a_kernel_of_the_same_size_stays(method):
    kernel = noise(4, 4, 3, 5)
    before = kernel.copy()
    actual = resize_patch_kernel(kernel, 4, method)
    np.testing.assert_allclose(actual, kernel, atol=1e-6)
    np.testing.assert_array_equal(kernel, before)


@each_rule
def test_a_kernel_comes_back(method):
    kernel = noise(4, 4, 1, 2)
    larger = resize_patch_kernel(kernel, 8, method)
    assert larger.shape == (8, 8, 1, 2)
    # A constant image has the same token at every size.
    np.testing.assert_allclose(
        larger.sum(axis=(0, 1)), kernel.sum(axis=(0, 1)), atol=1e-5
    )


def test_an_unknown_rule_of_patches_is_an_error():
    with pytest.raises(ValueError) as error:
        resize_patch_kernel(noise(2, 2, 1, 1), 4, "area")
    assert str(error.value) == (
        "`patch_resize` must be one of 'official', 'bilinear', 'bicubic', "
        "'bicubic_antialias', 'bilinear_antialias'. Received: "
        "patch_resize='area'"
    )


# -------------------------------------------------------------------- channels


def convolve(image, kernel):
    """Return the token of a patch: image (P, P, C), kernel (P, P, C, D)."""
    return np.einsum("pqc,pqcd->d", image, kernel)


def test_the_same_number_of_channels_changes_nothing():
    kernel = noise(4, 4, 3, 5)
    assert adapt_channels(kernel, 3) is kernel


def test_a_grey_image_gives_what_its_copies_gave():
    kernel, grey = noise(4, 4, 3, 5), noise(4, 4, 1, seed=1)
    adapted = adapt_channels(kernel, 1)
    assert adapted.shape == (4, 4, 1, 5)
    np.testing.assert_allclose(
        convolve(grey, adapted),
        convolve(np.repeat(grey, 3, axis=2), kernel),
        atol=1e-5,
    )


def test_copies_of_a_grey_image_give_what_it_gave():
    kernel, grey = noise(4, 4, 1, 5), noise(4, 4, 1, seed=1)
    adapted = adapt_channels(kernel, 3)
    assert adapted.shape == (4, 4, 3, 5)
    np.testing.assert_allclose(
        convolve(np.repeat(grey, 3, axis=2), adapted),
        convolve(grey, kernel),
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


@pytest.mark.parametrize(("old", "new"), [(3, 6), (3, 9), (1, 4), (2, 6)])
def test_whole_turns_keep_the_sum_over_channels(old, new):
    kernel = noise(2, 2, old, 4)
    np.testing.assert_allclose(
        adapt_channels(kernel, new).sum(axis=2), kernel.sum(axis=2), atol=1e-5
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
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
