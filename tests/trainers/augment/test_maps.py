"""Operations move the map of an image, an answer for each pixel, with it."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainers.augment.augmentation import parse_augmentation, try_operations
from trainers.augment.operations import (
    BUILT_IN,
    MIXING,
    NORMALIZING,
    resize_map,
)
from trainers.augment.randaugment import ON_MAPS, RANDAUGMENT

# Each moves pixels, or covers or recolours them.
LINES = [
    "affine(30, 0.2, 0.3)",
    "central_crop(40)",
    "flip_lr",
    "inception_crop(48, 0.2)",
    "pad_crop(9)",
    "random_crop(40)",
    "resize(48)",
    "resize(48, antialias)",
    "resize_small(50)",
    "resize_to_cover(48)",
    "inception_crop|flip_lr|affine(20, 0.1, 0.1)|resize_small(30)",
]


@pytest.fixture(scope="module")
def painted():
    """An image of cells of 16 x 16 pixels, and the map of its grey levels."""
    cells = 1 + np.random.default_rng(0).permutation(20).reshape(4, 5)
    levels = np.kron(cells, np.ones((16, 16))).astype("float32")
    return np.repeat(levels[..., None] * 10, 3, -1), levels[..., None]


def test_all_operations_are_tried():
    names = {line.split("(")[0] for line in "|".join(LINES).split("|")}
    apart = {*MIXING, *NORMALIZING, "randaugment", "random_erasing"}
    assert names == BUILT_IN - apart


@pytest.mark.parametrize("line", LINES)
def test_a_pattern_on_both_stays_one(line, painted):
    augmentation = parse_augmentation(line, (32, 32))
    known = 0
    for seed in range(20):
        draw = tf.constant([seed, 1])
        image, target = augmentation.both(*painted, draw)
        alone = augmentation.image(painted[0], draw)
        np.testing.assert_array_equal(image, alone)
        image, target = np.asarray(image), np.asarray(target)[..., 0]
        assert image.shape[:2] == target.shape
        # Between two cells, the image is a mixture. Empty space is black.
        inner = _away_from_edges(target)
        expected = np.nan_to_num(10 * target[inner])
        np.testing.assert_allclose(
            image[inner], np.repeat(expected[:, None], 3, 1), atol=1e-2
        )
        # Of classes, there are no mixtures; no class stands for unknown.
        assert np.isin(target[np.isfinite(target)], painted[1]).all()
        known += np.isfinite(target[inner]).sum()
    assert known > 1000


@pytest.mark.parametrize("line", [x for x in LINES if "|" not in x])
@pytest.mark.parametrize("axis", [0, 1])
def test_each_pixel_of_a_map_is_the_nearest(line, axis):
    """An image of places is resized to places; a map, to whole ones."""
    places = np.stack(np.mgrid[:60, :76], -1).astype("float32")
    image = np.pad(places, [(0, 0), (0, 0), (0, 1)], constant_values=200)
    augmentation = parse_augmentation(line, (32, 32))
    for seed in range(5):
        found, target = map(
            np.asarray,
            augmentation.both(
                image, places[..., axis, None], tf.constant([seed, 1])
            ),
        )
        inner = found[..., 2] > 199.99  # Not a mixture with empty space.
        away = np.abs(found[..., axis] - target[..., 0])[inner]
        assert len(away) > 200 and away.max() <= 0.51


def test_what_is_erased_keeps_its_map(painted):
    augmentation = parse_augmentation("random_erasing(1)", (32, 32))
    image, target = augmentation.both(*painted, tf.constant([0, 1]))
    assert not np.array_equal(image, painted[0])
    np.testing.assert_array_equal(target, painted[1])


def test_maps_are_resized_to_the_nearest_pixels_as_by_pillow():
    """From odd sizes, no centre of a pixel is just between two."""
    numbers = np.random.default_rng(0).random((15, 9), "float32")
    numbers[:3] = np.nan
    for height, width in ((24, 10), (7, 16), (31, 5), (8, 8)):
        found = resize_map(numbers[..., None], (height, width))[..., 0]
        image = Image.fromarray(numbers)
        image = image.resize((width, height), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(found, np.asarray(image))


def _away_from_edges(target, margin=3):
    """Whether all pixels around one have the same number as this."""
    numbers = np.nan_to_num(target, nan=-1)
    padded = np.pad(numbers, margin, constant_values=-2)
    shifts = range(2 * margin + 1)
    return np.all(
        [
            padded[y : y + target.shape[0], x : x + target.shape[1]] == numbers
            for y in shifts
            for x in shifts
        ],
        axis=0,
    )


def test_randaugment_moves_both(painted):
    """Where colours stay, too: they tell where a pixel is from."""
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (48, 40, 3)).astype("float32")
    place = np.arange(48 * 40, dtype="float32").reshape(48, 40, 1)
    moved = 0
    for seed in range(60):
        augmentation = parse_augmentation("randaugment(1, 10)", (32, 32))
        found, target = augmentation.both(
            tf.constant(image), tf.constant(place), tf.constant([seed, 1])
        )
        found, target = np.asarray(found), np.asarray(target)[..., 0]
        is_known = np.isfinite(target)
        source = image.reshape(-1, 3)[target[is_known].astype(int)]
        if not np.array_equal(target, place[..., 0]):
            moved += 1
            np.testing.assert_array_equal(found[is_known], source)
            assert (found[~is_known] == 128).all()
    # Five of sixteen operations move pixels.
    assert 10 <= moved <= 30


@pytest.mark.parametrize("name", RANDAUGMENT)
def test_maps_stay_where_operations_of_randaugment_leave_pixels(name):
    """Those that move none do alike with a mirrored image, and no others."""
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (48, 40, 3), "uint8")
    numbers = rng.random((48, 40, 1), "float32")

    def apply(operations, pixels):
        draws = 0.3, 1.0, tf.constant([0.5, 0.5])
        return np.asarray(operations[name](tf.constant(pixels), *draws))

    found = apply(RANDAUGMENT, image)
    is_alike = all(
        np.array_equal(apply(RANDAUGMENT, np.flip(image, axis)), mirrored)
        for axis in (0, 1)
        for mirrored in [np.flip(found, axis)]
    )
    assert is_alike == np.array_equal(apply(ON_MAPS, numbers), numbers)


def test_cutmix_cuts_maps_alike():
    rng = np.random.default_rng(2)
    levels = rng.integers(0, 50, (4, 16, 16, 1)).astype("float32")
    images, weights = np.repeat(levels, 3, -1), np.float32([1, 1, 1, 0])
    augmentation = parse_augmentation("cutmix(1.0)", (16, 16))
    others = np.zeros(len(levels), bool)
    for seed in range(10):
        found, maps = augmentation.batch(
            tf.constant(images), tf.constant(levels), weights, (seed, 3)
        )
        np.testing.assert_array_equal(found, np.repeat(maps, 3, -1))
        others |= (maps.numpy() != levels).any((1, 2, 3))
    # The partner of the third one is missing.
    np.testing.assert_array_equal(others, [True, True, False, False])


def test_operations_that_cannot_move_a_map_are_refused():
    for line in ("flip_lr|mixup(0.2)", "mixup"):
        try_operations(line, "augment", 3)
        with pytest.raises(ValueError, match="`augment`: .* mixup mixes"):
            try_operations(line, "augment", 3, has_maps=True)
