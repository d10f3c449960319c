import dataclasses
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.image_decoding import cut_window, decode_image
from trainers.data import batches, decoding
from trainers.data.bad_examples import BadExampleError, BadExamples, DataError
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.data.model_inputs import to_model_range
from trainers.data.slots import BatchSlots
from trainers.data.splits import count_split


def take(dataset, count):
    return [[t.numpy() for t in batch] for batch in dataset.take(count)]


def join(batches):
    """Return images, labels and weights of some batches, one array each."""
    return [np.concatenate(parts) for parts in zip(*batches)]


def assert_equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


class Counted:
    """A reader that counts what is read from it and what is decoded."""

    def __init__(self, reader):
        self.reader = reader
        self.read_names = []
        self.decoded = []

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def read(self, ranges):
        def note(name):
            self.read_names.append(name.decode())

        def count(stored, label, name):
            tf.numpy_function(note, [name], [])
            return stored, label, name

        return self.reader.read(ranges).map(count)

    def fetch(self, stored):
        tf.numpy_function(self.decoded.append, [stored], [])
        return self.reader.fetch(stored)

    @property
    def num_decoded(self):
        return len(self.decoded)


class Numbers:
    """A reader without files: white images, as large as photos may be."""

    class_names = ["number"]
    image_shape = (None, None, 1)
    train_split = eval_split = None
    shuffle_buffer = 10_000
    has_exif = False

    def __init__(self, size):
        self.splits = {"train": count_split("train", size)}

    def read(self, ranges):
        [(_, first, last)] = ranges
        numbers = tf.data.Dataset.range(first, last)
        return numbers.map(lambda n: (n, 0 * n, tf.strings.as_string(n)))

    def fetch(self, stored):
        return tf.strings.as_string(stored)

    def decode(self, encoded):
        return tf.fill((2, 2, 1), tf.constant(255, tf.uint8))


def counted(dataset):
    return dataclasses.replace(dataset, reader=Counted(dataset.reader))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return 24 images of noise to train on and 7 to test on, three classes.

    The first pixels of an image are its number, so that it can be told.
    """
    path = tmp_path_factory.mktemp("folder")
    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 7)):
        for index in range(count):
            file = path / split / "abc"[index % 3] / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 255, (12, 10, 3), "uint8")
            tf.io.write_file(str(file), tf.io.encode_png(pixels))
    return path


@pytest.fixture
def photos(folder):
    return open_dataset(f"folder:{folder}")


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

    def test_the_shape_of_a_batch_is_known(self, photos):
        spec = train_batches(
            photos, image_size=(8, 6), batch_size=8, num_replicas=2
        ).element_spec
        assert [tuple(s.shape) for s in spec] == [(4, 8, 6, 3), (4, 3), (4,)]

    def test_each_epoch_holds_each_image_once_in_an_order_of_its_own(
        self, digits
    ):
        images = self.indices(digits)
        epochs = [images[i : i + 1442] for i in (0, 1442, 2884)]
        want = sorted(
            to_model_range(tf.cast(i, tf.float32), (8, 8)).numpy().tobytes()
            for i, _ in digits.examples("train")
        )
        assert all(sorted(epoch) == want for epoch in epochs)
        for one, other in itertools.combinations(epochs, 2):
            moved = sum(a != b for a, b in zip(one, other))
            assert moved > 1300

    def test_the_order_is_well_shuffled(self, digits):
        place = {image: i for i, image in enumerate(self.indices(digits, 1))}
        other = [place[image] for image in self.indices(digits, 1, seed=4)]
        assert abs(np.corrcoef(other, np.arange(1442))[0, 1]) < 0.1

    def test_depend_on_the_seed_alone(self, photos):
        first, again = self.batches(photos), self.batches(photos)
        tf.random.set_seed(5)
        later = self.batches(photos)
        other = self.batches(photos, seed=4)
        for a, b, c, d in zip(first, again, later, other):
            assert_equal(a, b)
            assert_equal(a, c)
            assert np.any(a[0] != d[0])

    def test_the_seed_of_the_program_is_left_alone(self, photos):
        tf.random.set_seed(5)
        want = tf.random.uniform((3,))
        tf.random.set_seed(5)
        self.batches(photos, 1)
        np.testing.assert_array_equal(want, tf.random.uniform((3,)))

    @pytest.mark.parametrize(
        "num_streams", [1, pytest.param(2, marks=pytest.mark.slow)]
    )
    def test_a_restart_sees_what_it_would_have_seen(self, photos, num_streams):
        """Anywhere, in the first epochs and at their borders."""
        whole = self.batches(photos, 8, num_streams=num_streams)
        for step in (1, 3, 5):
            rest = self.batches(
                photos, 3, first_step=step, num_streams=num_streams
            )
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
        [
            (2, [(1, 2), (4, 4)]),
            pytest.param(2, [(2, 2), (2, 4)], marks=pytest.mark.slow),
            pytest.param(1, [(1, 2), (2, 8), (8, 8)], marks=pytest.mark.slow),
            pytest.param(4, [(1, 2), (2, 8)], marks=pytest.mark.slow),
            pytest.param(8, [(2, 2)], marks=pytest.mark.slow),
        ],
    )
    def test_are_the_same_on_any_number_of_workers_and_replicas(
        self, photos, num_streams, splits
    ):
        whole = self.batches(photos, 5, num_streams=num_streams)
        for workers, replicas in splits:
            parts = [
                self.batches(
                    photos,
                    5 * replicas // workers,
                    worker=worker,
                    num_workers=workers,
                    num_replicas=replicas,
                    num_streams=num_streams,
                )
                for worker in range(workers)
            ]
            each = replicas // workers
            for step, want in enumerate(whole):
                mine = slice(step * each, (step + 1) * each)
                found = [batch for part in parts for batch in part[mine]]
                assert all(len(b[0]) == 8 // replicas for b in found)
                assert_equal(join(found), want)

    def test_a_worker_reads_its_streams_only(self, photos):
        def read(worker):
            dataset = counted(photos)
            self.batches(
                dataset,
                6,
                worker=worker,
                num_workers=2,
                num_replicas=2,
                num_streams=2,
            )
            return set(dataset.reader.read_names)

        assert len(read(0)) == len(read(1)) == 12
        assert read(0).isdisjoint(read(1))

    def test_a_worker_decodes_its_slots_only(self):
        decoded = []
        for worker in (0, 1):
            reader = Counted(Numbers(5000))
            dataset = ImageDataset("numbers", reader, "train", None)
            self.batches(
                dataset, 5, num_workers=2, num_replicas=2, worker=worker
            )
            assert 5 * 4 <= len(reader.decoded) < 2500
            decoded.append(set(reader.decoded))
        assert decoded[0].isdisjoint(decoded[1])

    def test_streams_hold_the_split_once(self, photos):
        """An epoch of equal streams is one of the split."""
        whole = self.batches(photos, 3, augment="")
        streams = self.batches(photos, 3, augment="", num_streams=4)
        want, found = (
            [i.tobytes() for i in join(x)[0]] for x in (whole, streams)
        )
        assert sorted(want) == sorted(found)
        assert want != found

    def test_streams_need_not_be_of_one_length(self, photos):
        dataset = dataclasses.replace(photos, train_split="train[:22]")
        batches = self.batches(dataset, 22, augment="", num_streams=4)
        images = join(batches)[0]
        streams = images.reshape(22, 4, 2, -1).swapaxes(0, 1)
        counts = [
            len({i.tobytes() for i in s.reshape(44, -1)}) for s in streams
        ]
        assert sorted(counts) == [5, 5, 6, 6]

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
            for images, _, _ in self.batches(
                one_image,
                2,
                batch_size=1,
                augment="affine(10, 0.1, 0.1)",
                seed=seed,
            )
        ]
        assert len({image.tobytes() for image in draws}) == 4

    def test_a_data_set_without_train_split(self, photos):
        dataset = dataclasses.replace(photos, train_split=None)
        with pytest.raises(ValueError, match="split=None"):
            self.batches(dataset)


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
        found = take(dataset, 2 * 6)
        assert found[0][0].shape == (4, 8, 8, 3)
        want = take(train_batches(photos, image_size=(8, 8), batch_size=8), 3)
        assert images(found) == images(want)

    def test_augments(self, photos, service):
        dataset = self.batches(photos, service, augment="inception_crop")
        images = join(take(dataset, 12))[0]
        assert len({image.tobytes() for image in images}) > 24

    def test_bad_images_stop_it_with_the_message_of_tensorflow(
        self, digits, service
    ):
        dataset = dataclasses.replace(digits, reader=Undecodable(digits.reader))
        with pytest.raises(tf.errors.OpError, match="Unknown image file"):
            take(self.batches(dataset, service), 1)


class Undecodable:
    """A reader whose images cannot be read."""

    def __init__(self, reader):
        self.reader = reader

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def fetch(self, stored):
        return tf.strings.join(["x", stored])


class FakeAugmentation:
    """Notes its seeds in the images and the labels."""

    value_range = (0.0, 255.0)
    pick_window = None

    def image(self, image, seed, is_window, name):
        return tf.zeros_like(image) + tf.cast(seed[1], tf.float32)

    def batch(self, images, labels, weights, seed):
        size = tf.shape(images)[0]
        rolled = tf.roll(images, 1, 0)
        seeds = tf.repeat(tf.cast(seed, tf.float32)[None], size, 0)
        return tf.concat([images, rolled], -1), seeds


class TestWindows:
    """Of JPEGs, only what the first operation cuts out is decoded."""

    @pytest.fixture
    def jpegs(self, tmp_path):
        """Return a folder of six photos, two of them turned, and a PNG."""
        path = tmp_path / "train/class"
        path.mkdir(parents=True)
        pixels = np.kron(noise((12, 10, 3)), np.ones((8, 8, 1), "uint8"))
        for index in range(6):
            exif = Image.Exif()
            if index % 3 == 2:
                exif[0x0112] = 6
            image = Image.fromarray(np.roll(pixels, index))
            image.save(path / f"{index}.jpg", exif=exif)
        image.save(path / "6.png")
        return tmp_path

    def batches(self, path, **changes):
        dataset = open_dataset(f"folder:{path}", eval_split="train")
        choices = {
            "image_size": (16, 16),
            "batch_size": 7,
            "augment": "inception_crop|flip_lr",
            "seed": 3,
            **changes,
        }
        return take(train_batches(dataset, **choices), 2)

    def test_give_what_whole_images_give(self, jpegs, monkeypatch):
        found = self.batches(jpegs)
        calls = []

        def decode_window(encoded, pick_window, channels):
            image = decode_image(encoded)
            calls.append(image)
            return cut_window(image, pick_window(tf.shape(image)))

        monkeypatch.setattr(decoding, "decode_window", decode_window)
        for one, other in zip(found, self.batches(jpegs)):
            assert_equal(one, other)
        assert calls

    def test_of_turned_photos_are_upright(self, jpegs):
        """As Pillow turns them; a whole image is the one window here."""
        for file in (jpegs / "train/class").iterdir():
            target = jpegs / "train" / file.stem / file.name
            target.parent.mkdir()
            file.rename(target)
        for augment in ("inception_crop(16, 1)", "resize(16)"):
            images, labels, _ = join(self.batches(jpegs, augment=augment))
            for image, label in zip(images, labels.argmax(-1)):
                [file] = (jpegs / "train" / str(label)).iterdir()
                turned = ImageOps.exif_transpose(Image.open(file))
                want = to_model_range(np.array(turned, "float32"), (16, 16))
                np.testing.assert_allclose(image, want, atol=0.15)

    def test_do_not_hide_that_a_file_is_cut_off(self, jpegs):
        file = jpegs / "train/class/0.jpg"
        file.write_bytes(file.read_bytes()[:-200])
        bad_examples = BadExamples(1)
        _, _, weights = join(
            self.batches(
                jpegs,
                augment="inception_crop(smallest=0.01)",
                bad_examples=bad_examples,
            )
        )
        assert bad_examples.names == [str(file)]
        assert weights.sum() == 12


class TestAugmentationOfBatches:
    @pytest.fixture(autouse=True)
    def fake(self, monkeypatch):
        monkeypatch.setattr(
            batches, "parse_augmentation", lambda *_: FakeAugmentation()
        )

    def batches(self, photos, count, **changes):
        choices = {"image_size": (8, 8), "batch_size": 8, "seed": 9, **changes}
        return take(train_batches(photos, **choices), count)

    @pytest.mark.parametrize("num_streams", [1, 2])
    def test_seeds_are_positions_and_steps(self, photos, num_streams):
        found = self.batches(photos, 4, first_step=5, num_streams=num_streams)
        images, labels, _ = join(found)
        np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(40, 72))
        np.testing.assert_array_equal(labels[:, 0], 9)
        np.testing.assert_array_equal(
            labels[:, 1], np.repeat([-6, -7, -8, -9], 8)
        )

    @pytest.mark.parametrize("workers, replicas", [(2, 8)])
    def test_mixing_is_the_same_if_workers_have_whole_streams(
        self, photos, workers, replicas
    ):
        whole = self.batches(photos, 3, num_streams=2)
        parts = [
            self.batches(
                photos,
                3 * replicas // workers,
                worker=worker,
                num_workers=workers,
                num_replicas=replicas,
                num_streams=2,
            )
            for worker in range(workers)
        ]
        parts = [
            np.concatenate([images for images, _, _ in part]).reshape(
                3, 8 // workers, 8, 8, 6
            )
            for part in parts
        ]
        np.testing.assert_array_equal(
            np.concatenate(parts, 1), [images for images, _, _ in whole]
        )


class TestEvalBatches:
    def batches(self, dataset, **changes):
        choices = {"image_size": (8, 8), "batch_size": 4, **changes}
        return take(eval_batches(dataset, **choices), -1)

    def test_count_every_example_once(self, digits):
        batches = self.batches(digits, batch_size=100)
        assert [len(images) for images, _, _ in batches] == [100] * 4
        _, labels, weights = join(batches)
        np.testing.assert_array_equal(weights, np.arange(400) < 355)
        np.testing.assert_array_equal(labels.sum(-1), weights)

    def test_no_filler_if_the_batches_fit(self, digits):
        batches = self.batches(digits, batch_size=71)
        assert len(batches) == 5
        assert all(np.all(weights == 1) for _, _, weights in batches)

    def test_resize_to_another_size(self, digits):
        [(images, _, _)] = self.batches(
            digits, image_size=(16, 24), batch_size=355
        )
        assert images.shape == (355, 16, 24, 1)

    @pytest.mark.parametrize(
        "batch_size", [16, pytest.param(4, marks=pytest.mark.slow)]
    )
    def test_are_the_same_on_any_number_of_workers_and_replicas(
        self, photos, batch_size
    ):
        whole = self.batches(photos, batch_size=batch_size)
        assert join(whole)[2].sum() == 7
        for workers, replicas in ((1, 2), (2, 2)):
            parts = [
                self.batches(
                    photos,
                    batch_size=batch_size,
                    worker=worker,
                    num_workers=workers,
                    num_replicas=replicas,
                )
                for worker in range(workers)
            ]
            each = replicas // workers
            assert [len(p) for p in parts] == [len(whole) * each] * workers
            for step, want in enumerate(whole):
                mine = slice(step * each, (step + 1) * each)
                found = [batch for part in parts for batch in part[mine]]
                assert_equal(join(found), want)

    def test_labels_may_be_several_classes_or_none(self):
        """Who has none does not count; who has one twice has it once."""

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

    def test_a_worker_decodes_its_share(self, photos):
        dataset = counted(photos)
        self.batches(dataset, batch_size=8, num_workers=4, num_replicas=4)
        assert dataset.reader.num_decoded == 2

    def test_preprocessing_is_repeatable(self, photos):
        one, other = (
            self.batches(photos, preprocess="inception_crop") for _ in "ab"
        )
        for a, b in zip(one, other):
            assert_equal(a, b)
        assert np.any(one[0][0] != self.batches(photos)[0][0])


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"num_replicas": 3}, "multiple of .*=8, num_replicas=3"),
        ({"batch_size": 0}, "multiple of .*=0, num_replicas=1"),
        ({"num_replicas": 2, "num_workers": 4}, "multiple of `num_workers`"),
        ({"worker": 1}, "from 0 to 0.*worker=1"),
        ({"num_streams": 3}, "multiple of `num_streams`.*num_streams=3"),
        ({"num_streams": 0}, "multiple of `num_streams`.*num_streams=0"),
        (
            {
                "batch_size": 12,
                "num_streams": 3,
                "num_workers": 2,
                "num_replicas": 2,
            },
            "multiple of `num_workers`.*num_streams=3, num_workers=2",
        ),
        (
            {"num_streams": 32, "batch_size": 32},
            "more than the examples.*num_streams=32",
        ),
        (
            {"data_service": "grpc://x:1", "num_streams": 2},
            "must be 1 with `data_service`",
        ),
        (
            {"data_service": "grpc://x:1", "bad_examples": BadExamples(1)},
            "must be 0 with `data_service`.*max_bad_examples=1",
        ),
    ],
)
def test_numbers_that_do_not_fit(photos, choices, match):
    with pytest.raises(ValueError, match=match):
        train_batches(
            photos, **{"image_size": (8, 8), "batch_size": 8, **choices}
        )


def test_slots_cover_the_batch():
    slots = [BatchSlots(24, 6, worker, 3).slots for worker in range(3)]
    assert [p for part in slots for p in part] == list(range(24))


def test_model_range_is_minus_one_to_one():
    image = tf.constant([[[0.0], [255.0]], [[127.5], [51.0]]])
    np.testing.assert_allclose(
        to_model_range(image, (2, 2))[..., 0], [[-1, 1], [0, -0.6]], atol=1e-6
    )
    every = np.arange(256, dtype="float32").reshape(16, 16, 1)
    np.testing.assert_array_equal(
        to_model_range(every, (16, 16)), every / np.float32(127.5) - 1
    )
    np.testing.assert_allclose(
        to_model_range(image, (2, 2), (0, 1))[..., 0], [[0, 1], [0.5, 0.2]]
    )


DAMAGES = {
    "empty": lambda file: b"",
    "garbage": lambda file: b"garbage" * 99,
    "truncated JPEG": lambda file: tf.io.encode_jpeg(noise()).numpy()[:300],
    "truncated PNG": lambda file: file.read_bytes()[:200],
    "headless JPEG": lambda file: tf.io.encode_jpeg(noise()).numpy()[100:],
    "16 columns of nothing": lambda file: b"\x89PNG\r\n\x1a\n",
}


def noise(shape=(40, 40, 3)):
    return np.random.default_rng(0).integers(0, 255, shape, "uint8")


class TestBadExamples:
    @pytest.fixture
    def copy(self, folder, tmp_path):
        """Return a copy of the folder that a test may damage."""
        for file in folder.rglob("*.png"):
            target = tmp_path / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
        return tmp_path

    def batches(self, path, count, bad_examples=None, augment="inception_crop"):
        return take(
            train_batches(
                open_dataset(f"folder:{path}"),
                image_size=(8, 8),
                batch_size=8,
                augment=augment,
                bad_examples=bad_examples,
            ),
            count,
        )

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_stays_in_its_slot_without_weight(self, copy, damage):
        want = join(self.batches(copy, 6))
        file = copy / "train/b/4.png"
        file.write_bytes(DAMAGES[damage](file))
        bad_examples = BadExamples(1)
        images, labels, weights = join(self.batches(copy, 6, bad_examples))
        assert bad_examples.names == [str(file)]  # Once, not each epoch.
        slots = np.flatnonzero(weights == 0)
        assert len(slots) == 2 and slots[0] < 24 <= slots[1]
        assert not images[slots].any() and not labels[slots].any()
        others = weights == 1
        np.testing.assert_array_equal(images[others], want[0][others])
        np.testing.assert_array_equal(labels[others], want[1][others])

    def test_stops_at_the_first_by_default(self, copy):
        file = copy / "train/b/4.png"
        file.write_bytes(b"")
        with pytest.raises(tf.errors.OpError):
            self.batches(copy, 3)
        bad_examples = BadExamples()
        with pytest.raises(
            BadExampleError,
            match=r"^`.*/train/b/4.png` is not a readable image of the data "
            "set; --max_bad_examples=0$",
        ):
            with bad_examples.named_errors():
                self.batches(copy, 3, bad_examples)

    def test_stops_when_there_are_more_than_allowed(self, copy):
        for name in ("a/0", "b/4", "c/5"):
            (copy / f"train/{name}.png").write_bytes(b"")
        bad_examples = BadExamples(2)
        with pytest.raises(BadExampleError, match="are not readable images"):
            with bad_examples.named_errors():
                self.batches(copy, 3, bad_examples)
        assert len(bad_examples.names) == 3
        bad_examples = BadExamples(3)
        weights = join(self.batches(copy, 6, bad_examples))[2]
        assert weights.sum() == 42

    def test_a_file_that_is_gone(self, copy):
        dataset = open_dataset(f"folder:{copy}")
        (copy / "test/b/4.png").unlink()
        bad_examples = BadExamples(1)
        batches = take(
            eval_batches(
                dataset,
                image_size=(8, 8),
                batch_size=7,
                bad_examples=bad_examples,
            ),
            -1,
        )
        assert join(batches)[2].sum() == 6
        assert bad_examples.names == [str(copy / "test/b/4.png")]

    @pytest.mark.parametrize("crop", ["random_crop", "central_crop"])
    def test_one_that_is_too_small_for_a_crop_is_named(self, copy, crop):
        file = copy / "train/b/4.png"
        Image.fromarray(noise((12, 7, 3))).save(file)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"(?s){crop} takes images of 8 x 8 pixels .*12 7 3.*{file}",
        ):
            self.batches(copy, 3, augment=crop)

    def test_images_under_the_wrong_name_are_read(self, copy):
        pixels = noise((12, 10, 3))
        for file, form in (("a/0", "GIF"), ("b/4", "BMP"), ("c/5", "JPEG")):
            Image.fromarray(pixels).save(copy / f"train/{file}.png", form)
        assert np.all(join(self.batches(copy, 3))[2] == 1)

    @pytest.mark.parametrize("kind", ["bytes", "channels"])
    def test_examples_of_tfds_have_a_name(self, digits, kind):
        """What TFDS promises is checked, also before images are kept."""

        class Wrong(Undecodable):
            def decode(self, encoded):
                if kind == "bytes":
                    return self.reader.decode(encoded)
                image = tf.zeros((8, 8, tf.strings.length(encoded)), tf.uint8)
                return tf.ensure_shape(image, (8, 8, 1))

        dataset = dataclasses.replace(
            digits, train_split="train[700:701]", reader=Wrong(digits.reader)
        )
        bad_examples = BadExamples()
        with pytest.raises(
            BadExampleError, match="digits-train.tfrecord-00000-of-00001__700"
        ):
            with bad_examples.named_errors():
                batches = train_batches(
                    dataset,
                    image_size=(8, 8),
                    batch_size=1,
                    bad_examples=bad_examples,
                )
                take(batches, 1)

    def test_errors_of_files_are_named_without_the_nodes_of_tensorflow(
        self, copy
    ):
        file = copy / "train/b/4.png"
        Image.fromarray(noise((12, 7, 3))).save(file)
        with pytest.raises(DataError) as error:
            with BadExamples().named_errors():
                self.batches(copy, 3, augment="central_crop")
        assert str(error.value) == (
            "The data set cannot be read: central_crop takes images of 8 x 8 "
            f"pixels or more. Received: one of shape 12 7 3 {file}"
        )

    def test_other_errors_pass(self):
        with pytest.raises(tf.errors.InvalidArgumentError):
            with BadExamples().named_errors():
                tf.io.decode_image(b"")

    def test_threads_may_share_it(self):
        bad_examples = BadExamples(100)

        def report():
            for index in range(100):
                bad_examples.report(str(index))

        threads = [threading.Thread(target=report) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(bad_examples.names) == 100
        with pytest.raises(BadExampleError, match="`0`, .*`9` and 91 more"):
            bad_examples.report("one more")
