import math

import numpy as np
import pytest

from tests.trainers.augment.seeds import image_operation, over_seeds


def test_flip_mirrors_about_half_of_the_images(image):
    flip = image_operation("flip_lr")
    results = over_seeds(lambda seed: flip(image, seed), 200)
    flipped = [np.array_equal(r, image[:, ::-1]) for r in results]
    kept = [np.array_equal(r, image) for r in results]
    assert all(a != b for a, b in zip(flipped, kept))
    assert 70 < sum(flipped) < 130


def test_affine_of_zero_is_the_identity(image):
    result = image_operation("affine(0, 0, 0)")(image, (0, 1))
    np.testing.assert_allclose(result, image, atol=1e-2)


def centre_of_mass(image):
    y, x = np.meshgrid(*map(np.arange, image.shape[:2]), indexing="ij")
    weights = image[..., 0] / image.sum()
    return np.array([(weights * y).sum(), (weights * x).sum()])


def test_affine_turns_by_up_to_its_degrees():
    """The position of a dot right of the centre shows the angle."""
    image = np.zeros((41, 41, 1), "float32")
    image[20, 36] = 255
    turn = image_operation("affine(30, 0, 0)")
    angles = []
    for seed in range(40):
        y, x = centre_of_mass(turn(image, (0, seed)).numpy()) - 20
        assert math.hypot(x, y) == pytest.approx(16, abs=0.2)
        angles.append(math.degrees(math.atan2(y, x)))
    assert -30.5 < min(angles) < -20 and 20 < max(angles) < 30.5


def test_affine_zooms_by_up_to_its_share():
    """The distance of a dot from the centre is multiplied by the zoom."""
    image = np.zeros((41, 41, 1), "float32")
    image[20, 32] = 255
    zoom = image_operation("affine(0, 0, 0.25)")
    zooms = []
    for seed in range(40):
        y, x = centre_of_mass(zoom(image, (0, seed)).numpy()) - 20
        assert y == pytest.approx(0, abs=0.1)
        zooms.append(x / 12)
    assert 0.74 < min(zooms) < 0.85 and 1.15 < max(zooms) < 1.27


def test_affine_moves_rows_and_columns_by_shares_of_their_own():
    """Of height and width, drawn apart."""
    image = np.zeros((21, 41, 1), "float32")
    image[10, 20] = 255
    move = image_operation("affine(0, 0.2, 0)")
    moves = np.array(
        [
            centre_of_mass(move(image, (0, seed)).numpy()) - (10, 20)
            for seed in range(40)
        ]
    )
    rows, columns = np.abs(moves).max(0)
    assert 3 < rows < 4.3 and 6 < columns < 8.3
    assert abs(np.corrcoef(moves.T)[0, 1]) < 0.6
