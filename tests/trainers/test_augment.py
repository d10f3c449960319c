import math

import numpy as np
import pytest
import tensorflow as tf

from trainers.augment import OPS, parse_augmentation


@pytest.fixture
def image():
    random = np.random.default_rng(0)
    return random.uniform(0, 255, (12, 10, 3)).astype("float32")


EXAMPLES = {
    "affine": "affine(20, 0.2, 0.2)",
    "flip_lr": "flip_lr",
    "inception_crop": "inception_crop(0.3)",
    "pad_crop": "pad_crop(2)",
}


def test_every_operation_has_an_example():
    assert set(EXAMPLES) == set(OPS)


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_same_seed_same_image_and_other_seeds_others(text, image):
    augment = parse_augmentation(text)
    results = [augment(image, (7, seed)).numpy() for seed in range(20)]
    again = augment(image, (7, 3)).numpy()
    np.testing.assert_array_equal(results[3], again)
    assert any(r.shape != again.shape or np.any(r != again) for r in results)


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_inside_a_pipeline_as_outside(text, image):
    augment = parse_augmentation(text)
    dataset = tf.data.Dataset.from_tensors(image).map(
        lambda x: augment(x, (0, 5))
    )
    np.testing.assert_allclose(
        next(iter(dataset)), augment(image, (0, 5)), atol=1e-3
    )


def test_empty_text_changes_nothing(image):
    np.testing.assert_array_equal(parse_augmentation("")(image, (0, 0)), image)


def test_flip_mirrors_about_half_of_the_images(image):
    flip = parse_augmentation("flip_lr")
    results = [flip(image, (0, seed)).numpy() for seed in range(200)]
    flipped = [np.array_equal(r, image[:, ::-1]) for r in results]
    kept = [np.array_equal(r, image) for r in results]
    assert all(a != b for a, b in zip(flipped, kept))
    assert 70 < sum(flipped) < 130


def test_pad_crop_moves_by_at_most_its_argument(image):
    shifted = parse_augmentation("pad_crop(2)")
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = [
        padded[y : y + 12, x : x + 10] for y in range(5) for x in range(5)
    ]
    seen = set()
    for seed in range(60):
        result = shifted(image, (1, seed)).numpy()
        matches = [
            i for i, w in enumerate(windows) if np.array_equal(w, result)
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 15


def test_inception_crop_cuts_a_window_of_allowed_area_and_shape():
    y, x = np.meshgrid(np.arange(40.0), np.arange(40.0), indexing="ij")
    image = np.stack([y, x], -1).astype("float32")
    crop = parse_augmentation("inception_crop(0.3)")
    for seed in range(50):
        result = crop(image, (0, seed)).numpy()
        height, width = result.shape[:2]
        top, left = result[0, 0].astype(int)
        window = image[top : top + height, left : left + width]
        np.testing.assert_array_equal(result, window)
        assert height * width >= 0.3 * 1600 * 0.9  # Rounding of the sides.
        assert 0.7 < width / height < 1.4


def test_affine_of_zero_is_the_identity(image):
    result = parse_augmentation("affine(0, 0, 0)")(image, (0, 1))
    np.testing.assert_allclose(result, image, atol=1e-2)


def test_affine_turns_about_the_centre():
    """A dot in the centre stays there, one at the border moves."""
    image = np.zeros((9, 9, 1), "float32")
    image[4, 4] = 255
    turn = parse_augmentation("affine(90, 0, 0)")
    for seed in range(10):
        result = turn(image, (0, seed)).numpy()
        assert result[4, 4] == pytest.approx(255, abs=1)


def test_affine_shift_is_bounded():
    image = np.zeros((21, 21, 1), "float32")
    image[10, 10] = 255
    move = parse_augmentation("affine(0, 0.2, 0)")
    places = []
    for seed in range(40):
        result = move(image, (0, seed)).numpy()[..., 0]
        total = result.sum()
        assert total == pytest.approx(255, rel=1e-3)  # Bilinear keeps mass.
        y, x = np.meshgrid(*[np.arange(21)] * 2, indexing="ij")
        places.append([(result * y).sum() / total, (result * x).sum() / total])
    distance = np.abs(np.array(places) - 10)
    assert distance.max() <= 4.2 + 1e-3
    assert distance.max() > 2.5


@pytest.mark.parametrize(
    "text, message",
    [
        ("flip", "'flip_lr'.*Received: augment='flip'"),
        ("flip_lr|pad_crop(", r"'pad_crop\(' in augment="),
        ("pad_crop", "missing 1 required.*'pad_crop'"),
        ("pad_crop(x)", r"'pad_crop\(x\)'"),
        ("pad_crop(pixels=2)", "operations like"),
        ("__import__('os')", "'affine'"),
        ("affine('a', 0, 0)", r"Received: \"affine\('a', 0, 0\)\""),
        ("inception_crop(2)", r"'inception_crop\(2\)'"),
        ("pad_crop(-1)", r"'pad_crop\(-1\)'"),
    ],
)
def test_errors_point_at_the_operation(text, message):
    with pytest.raises(ValueError, match=message):
        parse_augmentation(text)


def centre_of_mass(image):
    y, x = np.meshgrid(*map(np.arange, image.shape[:2]), indexing="ij")
    weights = image[..., 0] / image.sum()
    return np.array([(weights * y).sum(), (weights * x).sum()])


def test_affine_turns_by_up_to_its_degrees():
    """A dot right of the centre, seen from there, tells the angle."""
    image = np.zeros((41, 41, 1), "float32")
    image[20, 36] = 255
    turn = parse_augmentation("affine(30, 0, 0)")
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
    zoom = parse_augmentation("affine(0, 0, 0.25)")
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
    move = parse_augmentation("affine(0, 0.2, 0)")
    moves = np.array(
        [
            centre_of_mass(move(image, (0, seed)).numpy()) - (10, 20)
            for seed in range(40)
        ]
    )
    rows, columns = np.abs(moves).max(0)
    assert 3 < rows < 4.3 and 6 < columns < 8.3
    assert abs(np.corrcoef(moves.T)[0, 1]) < 0.6


def test_equal_operations_draw_apart(image):
    """Two flips by one draw would cancel out."""
    twice = parse_augmentation("flip_lr|flip_lr")
    results = [twice(image, (0, seed)).numpy() for seed in range(20)]
    assert any(np.array_equal(r, image[:, ::-1]) for r in results)
