import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.trainers.augment.seeds import SIZE, image_operation, over_seeds


def windows_seen(results, image, size):
    """Return the offsets of the windows of `image` that results are."""
    height, width = size
    offsets = {}
    for y in range(image.shape[0] - height + 1):
        for x in range(image.shape[1] - width + 1):
            window = image[y : y + height, x : x + width]
            offsets[window.tobytes()] = (y, x)
    return [offsets[np.ascontiguousarray(r).tobytes()] for r in results]


def test_pad_crop_moves_by_at_most_its_argument(image):
    shift = image_operation("pad_crop(2)")
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    results = over_seeds(lambda seed: shift(image, seed), 400)
    seen = windows_seen(results, padded, (12, 10))
    assert len(set(seen)) == 25
    # Chi-squared with 24 degrees of freedom: beyond 51 once in a thousand.
    counts = np.unique(seen, axis=0, return_counts=True)[1]
    assert np.sum((counts - 16) ** 2 / 16) < 51


def test_random_crop_takes_any_window_alike(image):
    crop = image_operation("random_crop")  # 6 x 8 of 12 x 10.
    results = over_seeds(lambda seed: crop(image, seed), 420)
    seen = windows_seen(results, image, SIZE)
    assert len(set(seen)) == 21
    counts = np.unique(seen, axis=0, return_counts=True)[1]
    # Chi-squared with 20 degrees of freedom: beyond 45 once in a thousand.
    assert np.sum((counts - 20) ** 2 / 20) < 45


def test_central_crop_takes_the_middle(image):
    result = image_operation("central_crop(5)")(image, (0, 0))
    np.testing.assert_array_equal(result, image[3:8, 2:7])  # Rounded down.
    whole = image_operation("central_crop", (12, 10))(image, (0, 0))
    np.testing.assert_array_equal(whole, image)


def test_crops_of_images_that_are_too_small_say_so(image):
    crop = image_operation("random_crop(11)")
    rule = (
        "(?s)random_crop takes images of 11 x 11 pixels.*Received.*12.* 10.* 3"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=rule):
        crop(image, (0, 0))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rule):
        over_seeds(lambda seed: crop(image, seed), 1)


def coordinates(height, width):
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return np.stack([y, x], -1).astype("float32")


def window_of(result):
    """Return first pixels and sides of the part of `coordinates`.

    Bilinear from pixel centres, pixel i is at start + (i + 1/2) side / n
    - 1/2. At the border it would be outside of the part, so 3 to n - 3 tell.
    """
    found = []
    for axis in (0, 1):
        line = np.take(result[..., axis], 5, 1 - axis).astype(float)
        n = len(line)
        slope = (line[n - 4] - line[3]) / (n - 7)
        found.append((line[3] + 0.5 - 3.5 * slope, slope * n))
    (top, height), (left, width) = found
    return top, left, height, width


def test_inception_crop_resizes_a_window_of_allowed_area_and_shape():
    image = coordinates(80, 100)
    crop = image_operation("inception_crop(16, 0.3)")
    windows = np.array(
        [window_of(r) for r in over_seeds(lambda s: crop(image, s), 300)]
    )
    # Whole pixels: the rows and columns are those of the formula.
    np.testing.assert_allclose(windows, np.round(windows), atol=0.01)
    top, left, height, width = np.round(windows).T
    assert top.min() >= 0 and np.max(top + height) <= 80
    assert left.min() >= 0 and np.max(left + width) <= 100
    share, aspect = height * width / 8000, width / height
    assert 0.29 < share.min() < 0.33 and 0.85 < share.max() <= 1
    assert 0.73 < aspect.min() < 0.8 and 1.25 < aspect.max() < 1.36
    assert len(set(top)) > 20 and len(set(left)) > 20


def test_resize_ignores_the_aspect_and_does_not_smooth():
    image = coordinates(24, 50)
    result = image_operation("resize(10)")(image, (0, 0)).numpy()
    assert result.shape == (10, 10, 2)
    np.testing.assert_allclose(
        result[:, 0, 0], (np.arange(10) + 0.5) * 2.4 - 0.5, atol=1e-4
    )
    np.testing.assert_allclose(
        result[0, :, 1], (np.arange(10) + 0.5) * 5 - 0.5, atol=1e-4
    )
    image = np.zeros((30, 30, 1), "float32")
    image[0] = 255  # Between the pixels of the result: antialiasing saw it.
    result = image_operation("resize(6)")(image, (0, 0))
    assert np.max(result) == 0
    assert image_operation("resize")(image, (0, 0)).shape == (6, 8, 1)


@pytest.mark.parametrize(
    "size, side, expected",
    [
        ((60, 40), 20, (30, 20)),
        ((33, 50), 20, (20, 30)),  # 30.3.
        ((31, 49), 20, (20, 32)),  # 31.6.
        ((10, 17), 25, (25, 42)),  # 42.5, to even; larger than it was.
    ],
)
def test_resize_small_keeps_the_aspect(size, side, expected):
    result = image_operation(f"resize_small({side})")(
        coordinates(*size), (0, 0)
    )
    assert result.shape[:2] == expected


def test_resize_small_is_the_mean_over_areas(image):
    """Pillow's box filter, of a whole factor and of another one."""
    image = np.tile(image, (3, 3, 1))
    for side in (10, 15):
        result = image_operation(f"resize_small({side})")(image, (0, 0))
        height, width = result.shape[:2]
        for channel in range(3):
            reduced = Image.fromarray(image[..., channel]).resize(
                (width, height), Image.Resampling.BOX
            )
            np.testing.assert_allclose(
                result[..., channel], np.asarray(reduced), atol=0.01
            )
