import numpy as np

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


def moved(line, start, size=(41, 41)):
    """Return where a dot is moved to by 40 draws, from the centre (40, 2)."""
    image = np.zeros((*size, 1), "float32")
    image[start] = 255
    operation = image_operation(line)
    centre = [side // 2 for side in size]
    return np.array(
        [
            centre_of_mass(operation(image, (0, seed)).numpy()) - centre
            for seed in range(40)
        ]
    )


def test_affine_turns_by_up_to_its_degrees():
    """The position of a dot right of the centre shows the angle."""
    y, x = moved("affine(30, 0, 0)", (20, 36)).T
    np.testing.assert_allclose(np.hypot(x, y), 16, atol=0.2)
    angles = np.degrees(np.arctan2(y, x))
    assert -30.5 < min(angles) < -20 and 20 < max(angles) < 30.5


def test_affine_zooms_by_up_to_its_share():
    """The distance of a dot from the centre is multiplied by the zoom."""
    y, x = moved("affine(0, 0, 0.25)", (20, 32)).T
    np.testing.assert_allclose(y, 0, atol=0.1)
    assert 0.74 < min(x / 12) < 0.85 and 1.15 < max(x / 12) < 1.27


def test_affine_moves_rows_and_columns_by_shares_of_their_own():
    """Of height and width, drawn apart."""
    moves = moved("affine(0, 0.2, 0)", (10, 20), (21, 41))
    rows, columns = np.abs(moves).max(0)
    assert 3 < rows < 4.3 and 6 < columns < 8.3
    assert abs(np.corrcoef(moves.T)[0, 1]) < 0.6
