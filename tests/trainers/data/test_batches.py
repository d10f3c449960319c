import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.preprocessing.description import from_range
from tests.trainers.data.reading import (
    Counted,
    Numbers,
    Undecodable,
    assert_equal,
    counted,
    join,
    take,
)
from trainers.data import batches, decoding
from trainers.data.batches import eval_batches, to_model_input, train_batches
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.data.pixels import USUAL, PixelOptions


class Told(Numbers):
    """Images that tell their number, and their right side from their left."""

    def decode(self, encoded):
        number = tf.strings.to_number(encoded, tf.int32)
        sides = tf.stack([number, number + 100])
        return tf.cast(tf.reshape(sides, (1, 2, 1)), tf.uint8)


def compare_splits(make_batches, dataset, count, splits, **choices):
    """Compare a number of batches of one device with those of its parts."""
    whole = make_batches(dataset, count, **choices)
    for workers, replicas in splits:
        each = replicas // workers
        parts = [
            make_batches(
                dataset,
                count * each,
                worker=worker,
                num_workers=workers,
                num_replicas=replicas,
                **choices,
            )
            for worker in range(workers)
        ]
        for step, want in enumerate(whole):
            mine = slice(step * each, (step + 1) * each)
            found = [batch for part in parts for batch in part[mine]]
            assert all(len(b[0]) == len(want[0]) // replicas for b in found)
            assert_equal(join(found), want)
        assert [len(part) for part in parts] == [len(whole) * each] * workers


@pytest.fixture
def told():
    return ImageDataset("told", Told(24), "train", None)


class TestTrainBatches:
    def batches(self, dataset, count=3, **changes):
        choices = {
            "image_size": (8, 8),
            "batch_size": 8,
            "augment": "inception_crop|flip_lr",
            "seed": 3,
            **changes,
        }
        return take(train_batches(dataset, **choices), count)

    def indices(self, digits, epochs=3, **changes):
        """Return the images of some epochs, as bytes."""
        images, _, _ = join(
            self.batches(
                digits, epochs * 2, batch_size=721, augment="", **changes
            )
        )
        return [image.tobytes() for image in images]

    def test_shapes_and_ranges(self, digits):
        [(images, labels, weights)] = self.batches(
            digits, 1, batch_size=64, augment="affine(10, 0.1, 0.1)"
        )
        assert images.shape == (64, 8, 8, 1)
        assert labels.shape == (64, 10)
        assert images.dtype == labels.dtype == weights.dtype == np.float32
        assert images.min() == -1 and 0.9 < images.max() <= 1.00001
        np.testing.assert_array_equal(labels.sum(-1), 1)
        np.testing.assert_array_equal(weights, np.ones(64))

    def test_each_epoch_holds_each_image_once_in_an_order_of_its_own(
        self, digits
    ):
        """It is well shuffled: beside that of another seed, too."""
        images = self.indices(digits)
        epochs = [images[i : i + 1442] for i in (0, 1442, 2884)]
        want = sorted(
            to_model_input(tf.cast(i, tf.float32), (8, 8)).numpy().tobytes()
            for i, _ in digits.examples("train")
        )
        assert all(sorted(epoch) == want for epoch in epochs)
        for one, other in itertools.combinations(epochs, 2):
            moved = sum(a != b for a, b in zip(one, other))
            assert moved > 1300
        place = {image: i for i, image in enumerate(epochs[0])}
        other = [place[image] for image in self.indices(digits, 1, seed=4)]
        assert abs(np.corrcoef(other, np.arange(1442))[0, 1]) < 0.1

    def test_depend_on_the_seed_alone(self, told):
        choices = {"augment": "affine(10, 0.1, 0.1)"}
        tf.random.set_seed(5)
        want = tf.random.uniform((3,))
        tf.random.set_seed(5)
        first, again = (
            self.batches(told, **choices),
            self.batches(told, **choices),
        )
        # The seed of the program is left alone.
        np.testing.assert_array_equal(want, tf.random.uniform((3,)))
        later = self.batches(told, **choices)
        other = self.batches(told, seed=4, **choices)
        for a, b, c, d in zip(first, again, later, other):
            assert_equal(a, b)
            assert_equal(a, c)
            assert np.any(a[0] != d[0])

    def test_a_restart_sees_what_it_would_have_seen(self, told):
        """Anywhere, in the first epochs and at their borders."""
        choices = {"num_streams": 2, "augment": "flip_lr"}
        whole = self.batches(told, 8, **choices)
        for step in (1, 3, 5):
            rest = self.batches(told, 3, first_step=step, **choices)
            for a, b in zip(whole[step:], rest):
                assert_equal(a, b)

    def test_a_restart_reads_one_epoch_at_most_and_decodes_nothing_in_vain(
        self,
    ):
        size = 5000
        dataset = ImageDataset("numbers", Counted(Numbers(size)), "train", None)
        first_step = 50 * size // 8 + 99
        [(images, _, _)] = self.batches(
            dataset, 1, first_step=first_step, augment=""
        )
        assert len(dataset.reader.read_names) == size
        # One batch, and what is prefetched.
        assert dataset.reader.num_decoded < size / 4

    def test_small_data_are_read_and_decoded_once(self, digits):
        dataset = counted(digits)
        images, _, _ = join(
            self.batches(dataset, 9, batch_size=721, augment="")
        )
        assert len({i.tobytes() for i in images[:1442]}) == 1442
        assert len(dataset.reader.read_names) == 1442
        assert dataset.reader.num_decoded == 1442

    def test_large_data_are_not_kept(self, digits, monkeypatch):
        want = self.batches(digits, 12, batch_size=256, augment="")
        monkeypatch.setattr(decoding, "CACHE_BYTES", 1442 * 64 - 1)
        dataset = counted(digits)
        found = self.batches(dataset, 12, batch_size=256, augment="")
        assert dataset.reader.num_decoded >= 12 * 256
        for a, b in zip(want, found):
            assert_equal(a, b)

    # Every relation that there can be: a stream has several workers, one or
    # shares its worker; of a worker's part of it a replica has a part, all of
    # it, or that and of other streams.
    @pytest.mark.parametrize(
        "num_streams, splits",
        [(1, [(1, 2), (4, 4)]), (2, [(2, 4)]), (4, [(1, 2), (2, 8)])],
    )
    def test_are_the_same_on_any_number_of_workers_and_replicas(
        self, told, num_streams, splits
    ):
        choices = {"num_streams": num_streams, "augment": "flip_lr"}
        compare_splits(self.batches, told, 5, splits, **choices)

    def test_a_worker_reads_its_streams_only(self, told):
        def read(worker):
            dataset = counted(told)
            self.batches(
                dataset,
                6,
                worker=worker,
                num_workers=2,
                num_replicas=2,
                num_streams=2,
                augment="",
            )
            return set(dataset.reader.read_names)

        one, other = read(0), read(1)
        assert len(one) == len(other) == 12 and one.isdisjoint(other)

    def test_streams_hold_the_split_once(self, told):
        """An epoch of equal streams is one of the split."""
        whole = self.batches(told, 3, augment="")
        streams = self.batches(told, 3, augment="", num_streams=4)
        want, found = (
            [i.tobytes() for i in join(x)[0]] for x in (whole, streams)
        )
        assert sorted(want) == sorted(found)
        assert want != found


@pytest.fixture(scope="module")
def service():
    """Return a dispatcher of tf.data with a worker, in this process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.split("://")[1]
    config = service.WorkerConfig(dispatcher_address=address)
    worker = service.WorkerServer(config)
    yield dispatcher.target
    del worker, dispatcher


class TestDataService:
    def batches(self, dataset, service, **changes):
        choices = {"image_size": (8, 8), "batch_size": 8, "seed": 3, **changes}
        return train_batches(dataset, data_service=service, **choices)

    def test_gives_the_examples_of_a_split(self, photos, service):
        def images(batches):
            return {image.tobytes() for image in join(batches)[0]}

        dataset = self.batches(photos, service, num_replicas=2)
        spec = [tuple(s.shape) for s in dataset.element_spec]
        assert spec == [(4, 8, 8, 3), (4, 3), (4,)]
        found = take(dataset, 2 * 6)
        want = take(train_batches(photos, image_size=(8, 8), batch_size=8), 3)
        assert images(found) == images(want)

    def test_bad_images_stop_it_with_the_message_of_tensorflow(
        self, digits, service
    ):
        dataset = dataclasses.replace(digits, reader=Undecodable(digits.reader))
        with pytest.raises(tf.errors.OpError, match="Unknown image file"):
            take(self.batches(dataset, service), 1)


class FakeAugmentation:
    """Notes its seeds in the images and the labels."""

    normalization = from_range(0, 255)
    pick_window = None

    def image(self, image, seed, is_window, name):
        return tf.zeros_like(image) + tf.cast(seed[1], tf.float32)

    def batch(self, images, labels, weights, seed):
        size = tf.shape(images)[0]
        rolled = tf.roll(images, 1, 0)
        seeds = tf.repeat(tf.cast(seed, tf.float32)[None], size, 0)
        return tf.concat([images, rolled], -1), seeds


class TestAugmentationOfBatches:
    @pytest.fixture(autouse=True)
    def fake(self, monkeypatch):
        monkeypatch.setattr(
            batches, "parse_augmentation", lambda *_: FakeAugmentation()
        )

    def batches(self, told, count, **changes):
        choices = {"image_size": (8, 8), "batch_size": 8, "seed": 9, **changes}
        return take(train_batches(told, **choices), count)

    @pytest.mark.parametrize("num_streams", [1, 2])
    def test_seeds_are_positions_and_steps(self, told, num_streams):
        found = self.batches(told, 4, first_step=5, num_streams=num_streams)
        images, labels, _ = join(found)
        np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(40, 72))
        np.testing.assert_array_equal(labels[:, 0], 9)
        np.testing.assert_array_equal(
            labels[:, 1], np.repeat([-6, -7, -8, -9], 8)
        )

    def test_mixing_is_the_same_if_workers_have_whole_streams(self, told):
        whole = self.batches(told, 3, num_streams=2)
        parts = [
            self.batches(
                told,
                3 * 4,
                worker=worker,
                num_workers=2,
                num_replicas=8,
                num_streams=2,
            )
            for worker in range(2)
        ]
        for step, want in enumerate(whole):
            found = [p for part in parts for p in part[4 * step : 4 * step + 4]]
            np.testing.assert_array_equal(join(found)[0], want[0])


class TestEvalBatches:
    def batches(self, dataset, count=-1, **changes):
        choices = {"image_size": (8, 8), "batch_size": 4, **changes}
        return take(eval_batches(dataset, **choices), count)

    def test_count_every_example_once(self, digits):
        batches = self.batches(digits, batch_size=71)
        assert len(batches) == 5  # No filler if the batches fit.
        assert all(np.all(weights == 1) for _, _, weights in batches)
        batches = self.batches(digits, batch_size=100, image_size=(16, 24))
        assert [b[0].shape for b in batches] == [(100, 16, 24, 1)] * 4
        _, labels, weights = join(batches)
        np.testing.assert_array_equal(weights, np.arange(400) < 355)
        np.testing.assert_array_equal(labels.sum(-1), weights)

    def test_are_the_same_on_any_number_of_workers_and_replicas(self):
        seven = ImageDataset("told", Told(7), None, "train")
        assert join(self.batches(seven))[2].sum() == 7
        compare_splits(self.batches, seven, -1, ((1, 2), (2, 2)))

    def test_labels_may_be_several_classes_or_none(self):
        """Images without a class have weight 0; duplicates count once."""

        class Sets(Numbers):
            class_names = ["a", "b"]

            def read(self, ranges):
                labels = tf.constant([1, 0, 1])
                return (
                    super()
                    .read(ranges)
                    .map(lambda n, _, name: (n, labels[:n], name))
                )

        dataset = ImageDataset("sets", Sets(4), None, "train")
        [(_, labels, weights)] = self.batches(dataset)
        np.testing.assert_array_equal(labels, [[0, 0], [0, 1], [1, 1], [1, 1]])
        np.testing.assert_array_equal(weights, [0, 1, 1, 1])
        # All count where nobody needs the labels.
        dataset = dataclasses.replace(dataset, needs_labels=False)
        [(_, _, weights)] = self.batches(dataset)
        np.testing.assert_array_equal(weights, [1, 1, 1, 1])

    def test_preprocessing_is_repeatable(self, digits):
        whole, one, other = (
            self.batches(digits, 2, preprocess=line)
            for line in ("", *["inception_crop"] * 2)
        )
        for a, b in zip(one, other):
            assert_equal(a, b)
        assert np.any(one[0][0] != whole[0][0])


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"num_replicas": 3}, "multiple of .*=8, num_replicas=3"),
        ({"batch_size": 0}, "multiple of .*=0, num_replicas=1"),
        ({"num_replicas": 2, "num_workers": 4}, "multiple of `num_workers`"),
        ({"worker": 1}, "from 0 to 0.*worker=1"),
        ({"num_streams": 3}, "multiple of `num_streams`.*num_streams=3"),
        (
            {
                "batch_size": 12,
                "num_streams": 3,
                "num_workers": 2,
                "num_replicas": 2,
            },
            "multiple of `num_workers`.*num_streams=3, num_workers=2",
        ),
        ({"num_streams": 32, "batch_size": 32}, "exceed the number"),
        (
            {"data_service": "grpc://x:1", "num_streams": 2},
            "must be 1 with `data_service`",
        ),
        (
            {"data_service": "grpc://x:1", "pixels": PixelOptions(1)},
            "`channels` and .* must be unset with `data_service`.*channels=1",
        ),
        (
            {"data_service": "grpc://x:1", "bad_examples": BadExamples(1)},
            "must be 0 with `data_service`.*max_bad_examples=1",
        ),
    ],
)
def test_numbers_that_do_not_fit(photos, choices, match):
    choices = {**choices}
    photos = photos.with_pixels(choices.pop("pixels", USUAL))
    with pytest.raises(ValueError, match=match):
        train_batches(
            photos, **{"image_size": (8, 8), "batch_size": 8, **choices}
        )
