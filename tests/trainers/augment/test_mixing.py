"""Operations on batches."""

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.augment.seeds import SIZE, over_seeds
from trainers.augment.augmentation import parse_augmentation

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
