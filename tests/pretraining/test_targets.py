import dataclasses

import numpy as np
import pytest

from keras_vit.preprocessing.description import Preprocessing
from keras_vit.pretraining.pretraining_model import fixed_table
from keras_vit.pretraining.targets import (
    color_classes,
    cut_grid,
    join_grid,
    paint_classes,
    patch_moments,
)
from tests.tiny import noise, tiny_config, to_numpy

RECTANGLE = {"image_size": (16, 24), "patch_size": 8}


def test_patches_are_cut_row_by_row_and_joined_again():
    config = tiny_config(**RECTANGLE)
    images = noise(2, 16, 24, 3)
    patches = to_numpy(cut_grid(images, config))
    assert patches.shape == (2, 6, 192)
    # Row 1, column 2 of the grid is patch 5.
    np.testing.assert_array_equal(patches[1, 5], images[1, 8:, 16:].reshape(-1))
    np.testing.assert_array_equal(join_grid(patches, config), images)


def test_moments_are_those_of_numpy_with_one_degree_of_freedom_less():
    patches = noise(2, 3, 20, scale=2.0)
    mean, deviation = map(to_numpy, patch_moments(patches))
    np.testing.assert_allclose(mean[..., 0], patches.mean(-1), atol=1e-6)
    want = np.sqrt(patches.var(-1, ddof=1) + 1e-6)
    np.testing.assert_allclose(deviation[..., 0], want, rtol=1e-5)


@pytest.mark.parametrize("normalization", ["vit", "imagenet"])
@pytest.mark.parametrize("cells", [1, 4])
def test_colour_classes_are_the_highest_bits_of_mean_colours(
    normalization, cells
):
    """Computed from the stored bytes, with whole numbers."""
    config = dataclasses.replace(
        tiny_config(**RECTANGLE), preprocessing=Preprocessing(normalization)
    )
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3))
    step = 8 // cells
    sums = pixels.reshape(2, 16 // step, step, 24 // step, step, 3)
    shades = sums.sum((2, 4)) // step**2 >> 5  # (B, rows, columns, 3)
    classes = 64 * shades[..., 0] + 8 * shades[..., 1] + shades[..., 2]
    want = classes.reshape(2, 2, cells, 3, cells).transpose(0, 1, 3, 2, 4)
    mean, deviation = config.preprocessing.for_channels(3)
    images = (pixels / 255 - mean) / deviation
    got = to_numpy(color_classes(images.astype("float32"), config, cells))
    np.testing.assert_array_equal(got, want.reshape(2, 6, -1))
    assert got.max() < 512


def test_white_is_the_last_class_and_black_the_first():
    config = tiny_config()
    for value, want in ((-1.0, 0), (1.0, 511)):
        images = np.full((1, 32, 32, 3), value, "float32")
        assert set(to_numpy(color_classes(images, config, 1)).ravel()) == {want}


def test_grey_images_have_eight_classes():
    config = tiny_config(channels=1)
    images = np.full((1, 32, 32, 1), 2 * 200 / 255 - 1, "float32")
    assert (to_numpy(color_classes(images, config, 1)) == 200 // 32).all()


@pytest.mark.parametrize("cells", [1, 4])
def test_painted_patches_have_their_class(cells):
    config = tiny_config()
    random = np.random.default_rng(0)
    classes = random.integers(0, 512, (2, 16, cells * cells))
    images = join_grid(paint_classes(classes, config), config)
    got = to_numpy(color_classes(images, config, cells))
    np.testing.assert_array_equal(got, classes)


def test_patches_of_no_whole_cells_are_refused():
    config = tiny_config(patch_size=6, image_size=24)
    with pytest.raises(ValueError, match="`target` needs patches of whole"):
        color_classes(noise(1, 24, 24, 3), config, 4)


def test_fixed_positions_have_sines_of_columns_first():
    """Row by row of a 2 x 2 grid, computed by hand: w is 1 and 0.01."""
    sin1, cos1, sin01, cos01 = 0.841471, 0.540302, 0.01, 0.99995
    want = [
        [0, 0, 1, 1, 0, 0, 1, 1],
        [sin1, sin01, cos1, cos01, 0, 0, 1, 1],
        [0, 0, 1, 1, sin1, sin01, cos1, cos01],
        [sin1, sin01, cos1, cos01, sin1, sin01, cos1, cos01],
    ]
    np.testing.assert_allclose(fixed_table((2, 2), 8), want, atol=1e-6)


def test_fixed_positions_need_four_parts():
    with pytest.raises(ValueError, match="`width` must be a multiple of 4"):
        fixed_table((2, 2), 10)
