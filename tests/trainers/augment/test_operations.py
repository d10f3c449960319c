"""Operations on images and on batches."""

import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainers.augment.augmentation import parse_augmentation
from trainers.augment.operations import OPS

EXAMPLES = {
    "affine": "affine(20, 0.2, 0.2)",
    "flip_lr": "flip_lr",
    "inception_crop": "inception_crop(7, 0.3)",
    "pad_crop": "pad_crop(2)",
    "randaugment": "randaugment(2, 1)",
    "random_crop": "random_crop(5)",
    "random_erasing": "random_erasing(0.5)",
}


WITHOUT_DRAWS = {
    "central_crop": "central_crop",
    "normalize": "normalize(clip)",
    "resize": "resize(7)",
    "resize_small": "resize_small(5)",
    "resize_to_cover": "resize_to_cover(7, bicubic)",
    "value_range": "value_range(0, 1)",
}


def test_every_operation_has_an_example():
    assert set(EXAMPLES | WITHOUT_DRAWS) == set(OPS)


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_same_seed_same_image_and_other_seeds_others(text, image):
    augment = image_operation(text)
    results = over_seeds(lambda seed: augment(image, seed), 20)
    again = over_seeds(lambda seed: augment(image, seed), 20)
    for one, other in zip(results, again):
        np.testing.assert_array_equal(one, other)
    assert any(
        r.shape != results[3].shape or np.any(r != results[3]) for r in results
    )


@pytest.mark.parametrize("text", (EXAMPLES | WITHOUT_DRAWS).values())
def test_any_number_of_channels(text):
    for channels in (1,) if "randaugment" in text else (1, 5):
        image = tf.ones((9, 9, channels))
        assert image_operation(text)(image, (0, 0)).shape[-1] == channels


@pytest.mark.parametrize("text", (EXAMPLES | WITHOUT_DRAWS).values())
def test_images_of_unknown_size_in_a_pipeline(text, image):
    augment = image_operation(text)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([image, image[:9]]),
        output_signature=tf.TensorSpec((None, None, 3)),
    ).map(lambda x: augment(x, (0, 0)))
    for one, source in zip(dataset, (image, image[:9])):
        expected = augment(source, (0, 0))
        assert expected.dtype == tf.float32
        np.testing.assert_allclose(one, expected, atol=1e-3)


def test_empty_text_changes_nothing(image):
    for text in ("", "  "):
        augmentation = parse_augmentation(text, SIZE)
        np.testing.assert_array_equal(augmentation.image(image, (0, 0)), image)
        images, labels = augmentation.batch(
            image[None], tf.eye(1), tf.ones(1), (0, 0)
        )
        np.testing.assert_array_equal(images, image[None])
        assert augmentation.normalization == ((0.5,), (0.5,))
    augmentation = parse_augmentation("flip_lr|value_range(0, 1)|mixup", SIZE)
    assert augmentation.normalization == ((0,), (1,))


def test_equal_operations_draw_apart(image):
    """Two flips by one draw would cancel out."""
    twice = image_operation("flip_lr|flip_lr")
    results = over_seeds(lambda seed: twice(image, seed), 20)
    assert any(np.array_equal(r, image[:, ::-1]) for r in results)


def test_draws_depend_on_the_place_alone(image):
    """Later operations do not change the draws of an operation."""
    alone = image_operation("pad_crop(3)")
    first = image_operation("pad_crop(3)|flip_lr|affine(0, 0, 0)")
    for seed in range(10):
        expected = alone(image, (0, seed)).numpy()
        result = np.round(first(image, (0, seed)), 2)
        assert any(
            np.allclose(result, e, atol=0.02)
            for e in (expected, expected[:, ::-1])
        )


def test_randaugment_is_applied(image):
    augment = image_operation("randaugment(2, 10)")
    results = over_seeds(lambda seed: augment(image, seed), 30)
    assert sum(np.abs(r - image).max() > 1 for r in results) > 25
    for result in results:
        np.testing.assert_array_equal(result, np.round(result))
        assert 0 <= result.min() and result.max() <= 255


SIZE = (6, 8)


def image_operation(text, size=SIZE):
    return parse_augmentation(text, size).image


def over_seeds(function, count):
    """Return the arrays that a function of a seed gives for many seeds."""
    dataset = tf.data.Dataset.range(count).map(
        lambda i: function(tf.stack([np.int64(3), i])), num_parallel_calls=2
    )
    return list(dataset.as_numpy_iterator())


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


BATCHES = ("mixup(0.4)", "cutmix(0.7)", "mixup(0.4)|cutmix(1)")


def batch(count, size=(12, 10)):
    random = np.random.default_rng(1)
    images = random.uniform(-1, 1, (count, *size, 3)).astype("float32")
    return images, np.eye(count, dtype="float32"), np.ones(count, "float32")


def mix(text, *arguments):
    results = parse_augmentation(text, SIZE).batch(*arguments)
    return [result.numpy() for result in results]


def shares(text, count, size=(1, 1)):
    """Return the share of the other image, from images and from labels."""
    operation = parse_augmentation(text, SIZE).batch
    images = np.stack([np.zeros((*size, 1)), np.ones((*size, 1))])
    images = images.astype("float32")

    def share(seed):
        mixed, labels = operation(images, tf.eye(2), tf.ones(2), seed)
        return tf.stack([tf.reduce_mean(mixed[0]), labels[0, 1]])

    return np.stack(over_seeds(share, count)).T


@pytest.mark.parametrize("alpha", [0.2, 2])
def test_weights_of_mixup_are_of_a_beta_distribution(alpha):
    """Its central moments, the second and the fourth."""
    of_images, of_labels = shares(f"mixup({alpha})", 4000)
    np.testing.assert_allclose(of_images, of_labels, atol=1e-6)
    assert 0 <= of_labels.min() and of_labels.max() <= 0.5
    second = 1 / (4 * (2 * alpha + 1))
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    distance = 0.5 - of_labels.astype(float)
    assert np.mean(distance**2) == pytest.approx(second, rel=0.06)
    assert np.mean(distance**4) == pytest.approx(fourth, rel=0.1)


def test_mixup_averages_pairs():
    images, labels, weights = batch(4)
    mixed, mixed_labels = mix("mixup(1)", images, labels, weights, (0, 3))
    share = mixed_labels[0, 1]
    assert 0.05 < share < 0.5
    partners = [1, 0, 3, 2]
    for source, result in ((images, mixed), (labels, mixed_labels)):
        expected = (1 - share) * source + share * source[partners]
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_cutmix_replaces_one_rectangle_and_weighs_labels_by_its_area():
    images, labels, weights = batch(4)
    partners = [1, 0, 3, 2]
    for seed in range(20):
        mixed, mixed_labels = mix(
            "cutmix(1)", images, labels, weights, (0, seed)
        )
        box = np.all(mixed == images[partners], -1)
        np.testing.assert_array_equal(box | np.all(mixed == images, -1), True)
        assert np.all(box == box[0])
        rows, columns = box[0].any(1), box[0].any(0)
        np.testing.assert_array_equal(box[0], rows[:, None] & columns)
        for line in (rows, columns):  # In one piece.
            assert np.count_nonzero(np.diff(line.astype(int))) <= 2
        share = box[0].mean()
        expected = (1 - share) * labels + share * labels[partners]
        np.testing.assert_allclose(mixed_labels, expected, atol=1e-6)


def test_area_of_cutmix():
    """Of a share u, uniform for alpha 1, (s - s^2 / 4)^2 is inside.

    s is the root of u, and an end of s / 2 of the side is cut off, so much of
    the time that s^2 / 4 is lost in the mean. Its integral is 77 / 240.
    """
    of_images, of_labels = shares("cutmix(1)", 1500, size=(64, 48))
    np.testing.assert_allclose(of_images, of_labels, atol=1e-6)
    assert np.mean(of_labels) == pytest.approx(77 / 240, abs=0.02)
    assert of_labels.min() < 0.01 and of_labels.max() > 0.8


@pytest.mark.parametrize("text", BATCHES)
def test_a_batch_cut_between_pairs_is_mixed_as_a_whole(text):
    images, labels, weights = batch(8)
    weights[5] = 0
    for seed in range(6):
        whole = mix(text, images, labels, weights, (1, seed))
        for cuts in ([2], [4], [2, 6]):
            parts = [
                mix(text, *arrays, (1, seed))
                for arrays in zip(
                    *(np.split(a, cuts) for a in (images, labels, weights))
                )
            ]
            for index in (0, 1):
                together = np.concatenate([part[index] for part in parts])
                np.testing.assert_array_equal(together, whole[index])


@pytest.mark.parametrize("text", BATCHES)
def test_an_unpaired_image_is_unchanged(text):
    images, labels, weights = batch(7)
    weights[[1, 2]] = 0
    changed = set()
    for seed in range(8):
        mixed, mixed_labels = mix(text, images, labels, weights, (0, seed))
        for index in (0, 1, 2, 3, 6):
            np.testing.assert_array_equal(mixed[index], images[index])
            np.testing.assert_array_equal(mixed_labels[index], labels[index])
        changed |= {i for i in range(7) if np.any(mixed[i] != images[i])}
    assert changed == {4, 5}


@pytest.mark.parametrize("text", BATCHES)
def test_same_seed_same_batch_and_other_seeds_others(text):
    arrays = batch(4)
    one, again, other = (mix(text, *arrays, (0, s))[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)


def test_one_of_several_is_drawn_for_each_batch():
    """Mixup gives equal pixels; CutMix gives pixels of both images."""
    operation = parse_augmentation("mixup(1)|cutmix(1)", SIZE).batch
    images = np.stack([np.zeros((8, 8, 1)), np.ones((8, 8, 1))])
    images = images.astype("float32")
    results = over_seeds(
        lambda seed: operation(images, tf.eye(2), tf.ones(2), seed)[0], 400
    )
    is_cut = [set(np.unique(result)) <= {0, 1} for result in results]
    assert 160 < sum(is_cut) < 240  # 200 and four deviations.
