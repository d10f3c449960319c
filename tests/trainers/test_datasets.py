import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from tests.trainers.mocked import write_metadata
from trainers.datasets import (
    DATASETS,
    eval_batches,
    open_dataset,
    to_model_range,
    train_batches,
)


def take(dataset, count):
    return [[t.numpy() for t in batch] for batch in dataset.take(count)]


class TestDigits:
    def test_holds_every_image_of_scikit_learn_once(self, digits):
        def rows(images):
            return sorted(image.tobytes() for image in images)

        found = [
            image.numpy()[..., 0]
            for split in ("train", "test")
            for image, _ in digits.examples(split)
        ]
        source = load_digits().images
        want = (source * (255 / 16)).round().astype("uint8")
        assert rows(found) == rows(want)
        assert digits.num_examples("train") == 1442
        assert digits.num_examples("test") == 355

    def test_labels_belong_to_their_images(self, digits):
        source = load_digits()
        pixels = (source.images * (255 / 16)).round().astype("uint8")
        label_of = {p.tobytes(): t for p, t in zip(pixels, source.target)}
        for image, label in digits.examples("test"):
            assert label_of[image.numpy()[..., 0].tobytes()] == int(label)

    def test_one_fifth_of_each_class_is_for_testing(self, digits):
        count = collections.Counter(
            int(label) for _, label in digits.examples("test")
        )
        every = collections.Counter(load_digits().target.tolist())
        assert all(count[d] == every[d] // 5 for d in range(10))

    def test_describes_itself(self, digits):
        assert digits.class_names == [str(d) for d in range(10)]
        assert digits.channels == 1


class TestTrainBatches:
    def batches(self, digits, count=3, **changes):
        choices = {
            "image_size": (8, 8),
            "batch_size": 64,
            "augment": "affine(10, 0.1, 0.1)|flip_lr",
            "seed": 3,
            **changes,
        }
        return take(train_batches(digits, **choices), count)

    def test_shapes_and_ranges(self, digits):
        [(images, labels)] = self.batches(digits, 1)
        assert images.shape == (64, 8, 8, 1)
        assert labels.shape == (64, 10)
        assert images.dtype == labels.dtype == np.float32
        assert images.min() == -1 and 0.9 < images.max() <= 1.00001
        np.testing.assert_array_equal(labels.sum(-1), 1)

    def test_depend_on_the_seed_alone(self, digits):
        first, again = self.batches(digits), self.batches(digits)
        other = self.batches(digits, seed=4)
        for a, b, c in zip(first, again, other):
            np.testing.assert_array_equal(a[0], b[0])
            assert np.any(a[0] != c[0])

    def test_a_restart_sees_what_it_would_have_seen(self, digits):
        """Also in the second epoch, which has an order of its own."""
        whole = self.batches(digits, 26)
        rest = self.batches(digits, 3, first_step=23)
        for a, b in zip(whole[23:], rest):
            np.testing.assert_array_equal(a[0], b[0])
            np.testing.assert_array_equal(a[1], b[1])

    def test_an_epoch_holds_every_image_once(self, digits):
        batches = self.batches(digits, 2, batch_size=721, augment="")
        images = np.concatenate([images for images, _ in batches])
        want = [to_model_range(i, (8, 8)) for i, _ in digits.examples("train")]
        assert sorted(i.tobytes() for i in images) == sorted(
            i.numpy().tobytes() for i in want
        )


class TestEvalBatches:
    def test_count_every_example_once(self, digits):
        batches = take(
            eval_batches(digits, image_size=(8, 8), batch_size=100), -1
        )
        assert [len(images) for images, _, _ in batches] == [100] * 4
        weights = np.concatenate([w for _, _, w in batches])
        assert weights.sum() == 355
        np.testing.assert_array_equal(weights[355:], 0)

    def test_no_filler_if_the_batches_fit(self, digits):
        batches = take(
            eval_batches(digits, image_size=(8, 8), batch_size=71), -1
        )
        assert len(batches) == 5
        assert all(np.all(weights == 1) for _, _, weights in batches)

    def test_resize_to_another_size(self, digits):
        [(images, _, _)] = take(
            eval_batches(digits, image_size=(16, 24), batch_size=355), 1
        )
        assert images.shape == (355, 16, 24, 1)


def test_model_range_is_minus_one_to_one():
    image = tf.constant([[[0.0], [255.0]], [[127.5], [51.0]]])
    np.testing.assert_allclose(
        to_model_range(image, (2, 2))[..., 0], [[-1, 1], [0, -0.6]], atol=1e-6
    )


@pytest.fixture
def folder(tmp_path):
    """Return a folder of made JPEG and PNG images, two classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for name, shade in (("black", 20), ("white", 220)):
            path = tmp_path / split / name
            path.mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(shade - 9, shade + 9, (20, 16, 3))
                pixels = tf.constant(pixels, tf.uint8)
                encode, ending = (
                    (tf.io.encode_png, "png")
                    if index % 2
                    else (tf.io.encode_jpeg, "jpg")
                )
                tf.io.write_file(
                    str(path / f"{index}.{ending}"), encode(pixels)
                )
    return tmp_path


def test_folder_of_images(folder):
    dataset = open_dataset(f"folder:{folder}")
    assert dataset.class_names == ["black", "white"]
    assert dataset.channels == 3
    assert dataset.num_examples(dataset.train_split) == 12
    assert dataset.num_examples(dataset.eval_split) == 6
    [(images, labels, _)] = take(
        eval_batches(dataset, image_size=(8, 8), batch_size=6), 1
    )
    bright = images.mean((1, 2, 3)) > 0
    np.testing.assert_array_equal(bright, labels[:, 1] == 1)


@pytest.mark.parametrize(
    "name, size, splits, eval_split",
    [
        ("cifar10", 32, ["train", "test"], "test"),
        ("imagenet2012", 24, ["train", "validation", "test"], "validation"),
        ("mnist", 28, ["train", "test"], "test"),
    ],
)
def test_any_data_set_of_tfds(name, size, splits, eval_split, tmp_path):
    """TFDS makes up the examples; nothing is downloaded."""
    write_metadata(name, splits, tmp_path)
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):
        dataset = open_dataset(name)
        assert dataset.train_split == "train"
        assert dataset.eval_split == eval_split
        batches = train_batches(
            dataset,
            image_size=(size, size),
            batch_size=4,
            augment="inception_crop|flip_lr",
        )
        [(images, labels)] = take(batches, 1)
    assert images.shape == (4, size, size, dataset.channels)
    assert labels.shape == (4, len(dataset.class_names))


def test_data_set_without_labels_is_an_error(tmp_path):
    write_metadata("celeb_a", ["train", "test"], tmp_path)
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):
        with pytest.raises(ValueError, match="features `image` and `label`"):
            open_dataset("celeb_a")


def test_table_names_are_all_tested():
    assert set(DATASETS) == {"digits", "cifar10", "imagenet2012"}


def test_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="digits, cifar10.*'digit'"):
        open_dataset("digit")


@pytest.mark.parametrize("make", [True, False])
def test_folder_that_is_none(tmp_path, make):
    path = tmp_path if make else tmp_path / "absent"
    with pytest.raises(ValueError, match="PATH/train/CLASS/IMAGE.jpg"):
        open_dataset(f"folder:{path}")


def test_folder_without_a_test_split(folder):
    (folder / "test").rename(folder / "holdout")
    with pytest.raises(ValueError, match="split called test or validation"):
        open_dataset(f"folder:{folder}")


class TestSeedsOfTrainBatches:
    def batches(self, digits, count, **changes):
        choices = {"image_size": (8, 8), "batch_size": 64, **changes}
        return take(train_batches(digits, **choices), count)

    def test_the_order_depends_on_the_seed(self, digits):
        [(one, _)], [(other, _)] = (
            self.batches(digits, 1, augment="", seed=seed) for seed in (3, 4)
        )
        assert np.any(one != other)

    def test_each_epoch_has_an_order_of_its_own(self, digits):
        one, other = self.batches(digits, 2, batch_size=1442, augment="")
        assert np.any(one[0] != other[0])

    @pytest.fixture
    def one_image(self, digits):
        """Return data of a single image: only the augmentation can differ."""
        return dataclasses.replace(digits, train_split="train[:1]")

    def test_the_augmentation_depends_on_the_seed_and_the_epoch(
        self, one_image
    ):
        draws = [
            images
            for seed in (3, 4)
            for images, _ in self.batches(
                one_image,
                2,
                batch_size=1,
                augment="affine(10, 0.1, 0.1)",
                seed=seed,
            )
        ]
        assert len({image.tobytes() for image in draws}) == 4
