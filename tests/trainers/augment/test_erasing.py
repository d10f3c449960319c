import math

import numpy as np
import pytest

from tests.trainers.augment.seeds import image_operation, over_seeds


def erased(text, count, size=(40, 50)):
    erase = image_operation(text)
    image = np.full((*size, 2), -1, "float32")
    return np.stack(over_seeds(lambda seed: erase(image, seed), count))


def test_random_erasing_writes_rectangles_of_allowed_area_and_shape():
    results = erased("random_erasing(1, 0.1, 0.3, aspect=0.5, fill=7)", 300)
    assert set(results.ravel()) == {-1, 7}
    areas, aspects, places = [], [], []
    for result in results:
        np.testing.assert_array_equal(result[..., 0], result[..., 1])
        rows, columns = np.nonzero(result[..., 0] == 7)
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert len(rows) == height * width  # All of a rectangle.
        areas.append(height * width / 2000)
        aspects.append(math.log2(height / width))
        places.append((rows.min() / (40 - height + 1e-6), columns.min()))
    assert 0.09 < min(areas) < 0.12 and 0.28 < max(areas) < 0.315
    assert np.mean(areas) == pytest.approx(0.2, abs=0.015)
    # Twice as high is as likely as twice as wide.
    assert -1.15 < min(aspects) < -0.9 and 0.9 < max(aspects) < 1.15
    assert np.mean(aspects) == pytest.approx(0, abs=0.12)
    assert np.mean(places, 0)[0] == pytest.approx(0.5, abs=0.08)
    assert min(p[0] for p in places) == 0
    assert max(p[0] for p in places) == pytest.approx(1, abs=1e-3)


def test_random_erasing_takes_the_share_of_the_images_it_is_told():
    assert np.all(erased("random_erasing(0)", 20) == -1)
    changed = np.any(erased("random_erasing(0.25)", 400) != -1, (1, 2, 3))
    assert 70 < changed.sum() < 130  # 100 and three and a half deviations.


def test_random_erasing_fills_with_noise():
    results = erased("random_erasing(1)", 50)
    levels = results[results != -1]
    assert levels.min() >= 0 and levels.max() <= 255
    counts = np.histogram(levels, 8, (0, 255))[0]
    assert counts.min() > 0.95 * counts.mean()
    pairs = results[results[..., 0] != -1]
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.05  # Of each channel its own.


def test_random_erasing_leaves_what_no_rectangle_fits_into():
    """A tenth as high as wide, no rectangle of that area fits."""
    results = erased("random_erasing(1, 0.9, 1, 0.01)", 30, size=(10, 10))
    kept = np.all(results == -1, (1, 2, 3))
    assert kept.any()
