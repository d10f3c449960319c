"""Images as sequences of patches."""

import math

import numpy as np
import pytest

from keras_vit import (
    FlexibleVisionTransformer,
    VisionTransformer,
    preprocess_input,
    preprocess_patches,
)
from keras_vit.layers import PatchEncoder
from keras_vit.layers.resize import resize_patch_kernel, resize_position_grid
from keras_vit.models import cut_patches
from keras_vit.models.flexible import fitting_size
from tests.tiny import noise, randomize, tiny_config, to_numpy


def test_patches_are_cut_row_by_row():
    images = noise(2, 12, 8, 3)
    found = cut_patches(images, 4)
    patches = to_numpy(found["patches"])
    assert patches.shape == (2, 6, 48)
    for index, (row, column) in enumerate(to_numpy(found["coordinates"])[0]):
        part = images[:, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
        np.testing.assert_array_equal(patches[:, index], part.reshape(2, 48))


def test_what_is_left_at_the_border_is_not_read():
    images = noise(1, 13, 19, 3)
    found, part = cut_patches(images, 6), cut_patches(images[:, :12, :18], 6)
    for key, value in found.items():
        np.testing.assert_array_equal(to_numpy(value), to_numpy(part[key]))


def test_whole_numbers_are_resized_as_floats():
    pixels = np.random.default_rng(3).integers(0, 256, (1, 12, 24, 3), "uint8")
    found, expected = (
        to_numpy(cut_patches(x, 12, 8)["patches"])
        for x in (pixels, pixels.astype("float32"))
    )
    np.testing.assert_array_equal(found, expected)
    assert np.ptp(found) > 1
    table = np.arange(6).reshape(2, 3, 1)
    for method in ("official", "bilinear"):
        found, expected = (
            to_numpy(resize_position_grid(x, (3, 5), method))
            for x in (table, table.astype("float32"))
        )
        np.testing.assert_array_equal(found, expected)
        assert len(np.unique(found)) > 6


@pytest.mark.parametrize("method", ["bilinear", "bicubic_antialias"])
@pytest.mark.parametrize("side", [4, 6, 16])
def test_patches_of_another_size_have_the_tokens_of_a_resized_kernel(
    side, method
):
    encoder = PatchEncoder(8, 24)
    encoder.build((None, 32, 32, 3))
    randomize(encoder)
    images = noise(2, 3 * side, 2 * side, 3)
    other = PatchEncoder(side, 24)
    other.build(images.shape)
    kernel = resize_patch_kernel(to_numpy(encoder.kernel), side, method)
    other.set_weights([kernel, to_numpy(encoder.bias)])
    found = cut_patches(images, side, 8, method)
    np.testing.assert_allclose(
        to_numpy(encoder.project(found["patches"])),
        to_numpy(other(images)),
        atol=2e-5,
    )


@pytest.mark.parametrize(
    ("image_size", "patch_size", "max_patches"),
    [
        ((480, 640), 16, 256),
        ((10, 1000), 8, 7),
        ((32, 32), 8, 16),
        ((3, 5), 4, 1),
    ],
)
def test_a_size_is_the_largest_that_fits(image_size, patch_size, max_patches):
    size = fitting_size(image_size, patch_size, max_patches)
    assert not any(side % patch_size for side in size)
    h, w = (side // patch_size for side in size)
    assert h * w <= max_patches
    # A scale a little larger, which rounds up to more patches, does not fit.
    scale = max(
        (h * patch_size) / image_size[0], (w * patch_size) / image_size[1]
    )
    scale += 1e-4
    grid = [math.ceil(s * scale / patch_size) for s in image_size]
    assert math.prod(grid) > max_patches
    # The ratio is that of the image, up to one patch.
    for side, other in ((0, 1), (1, 0)):
        exact = size[other] * image_size[side] / image_size[other]
        assert abs(size[side] - exact) <= patch_size * max(
            1, image_size[side] / image_size[other]
        )


def test_photos_of_different_sizes_are_one_batch():
    model = VisionTransformer(tiny_config(preprocessing="imagenet"))
    photos = [
        np.random.default_rng(i).integers(0, 256, (*size, 3), "uint8")
        for i, size in enumerate([(32, 32), (24, 40), (8, 8)])
    ]
    batch = preprocess_patches(photos, model, 16)
    assert batch["patches"].shape == (3, 16, 192)
    assert batch["mask"].sum(axis=1).tolist() == [16, 15, 16]
    # The first two are as large as they may be: nothing is resized.
    for index in range(2):
        image = preprocess_input(photos[index][None], mode="imagenet")
        found = cut_patches(np.asarray(image), 8)
        count = found["patches"].shape[1]
        for key, value in found.items():
            np.testing.assert_allclose(
                batch[key][index, :count], to_numpy(value)[0], atol=1e-6
            )
    assert not batch["patches"][1, 15:].any()
    assert photos[0].dtype == np.uint8


def test_mistakes_are_named():
    model = VisionTransformer(tiny_config())
    with pytest.raises(ValueError, match="at least one image"):
        preprocess_patches([], model, 16)
    with pytest.raises(ValueError, match=r"\(H, W, 3\) each.*\(8, 8, 1\)"):
        preprocess_patches([np.zeros((8, 8, 1), "uint8")], model, 16)
    with pytest.raises(ValueError, match="`patch_size`.*patch_size=0"):
        preprocess_patches([np.zeros((8, 8, 3), "uint8")], model, 4, 0)
    for number in (0, -1):
        with pytest.raises(ValueError, match="`max_patches`"):
            preprocess_patches([np.zeros((8, 8, 3), "uint8")], model, number)


def test_patches_are_resized_by_the_rule_of_the_model():
    """As when the model cuts the images itself."""
    model = FlexibleVisionTransformer(
        VisionTransformer(tiny_config()), patch_resize="bicubic"
    )
    photo = np.random.default_rng(0).integers(0, 256, (32, 32, 3), "uint8")
    batch = preprocess_patches([photo], model, 4, patch_size=16)
    image = preprocess_input(photo[None], model=model)
    np.testing.assert_allclose(
        to_numpy(model(batch)), to_numpy(model(image, patch_size=16)), atol=1e-5
    )
    found = cut_patches(np.asarray(image), 16, 8)["patches"]
    assert np.abs(batch["patches"] - to_numpy(found)).max() > 0.01
