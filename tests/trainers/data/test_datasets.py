import collections
import gzip
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from tests.trainers.mocked import write_metadata
from trainers.data.bad_examples import BadExamples
from trainers.data.batches import eval_batches
from trainers.data.datasets import open_dataset
from trainers.data.readers.tfds import DATASETS
from trainers.data.readers.tfrecord import count_records


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


class TestHalvesOfTheDigits:
    @pytest.mark.parametrize(
        "name, digits_of",
        [("digits_0to4", range(5)), ("digits_5to9", range(5, 10))],
    )
    def test_are_the_images_of_five_digits(self, digits, name, digits_of):
        half = open_dataset(name)
        assert half.class_names == [str(digit) for digit in digits_of]
        for split in ("train", "test"):
            want = sorted(
                (image.numpy().tobytes(), int(label) - digits_of[0])
                for image, label in digits.examples(split)
                if int(label) in digits_of
            )
            assert want == sorted(
                (image.numpy().tobytes(), int(label))
                for image, label in half.examples(split)
            )


class TestSplits:
    def test_may_be_chosen(self):
        dataset = open_dataset(
            "digits", train_split="train[:98%]", eval_split="train[98%:]+test"
        )
        counts = [
            dataset.num_examples(split)
            for split in (dataset.train_split, dataset.eval_split)
        ]
        assert counts == [1413, 29 + 355]
        assert len(list(dataset.examples(dataset.eval_split))) == counts[1]

    @pytest.mark.parametrize("argument", ["train_split", "eval_split"])
    @pytest.mark.parametrize(
        "split, hint",
        [
            ("training", "Unknown split"),
            ("train[:", "Error parsing"),
            ("train[7:7]", "no examples"),
        ],
    )
    def test_that_are_none(self, argument, split, hint):
        with pytest.raises(
            ValueError,
            match=rf"`{argument}`.*has train, test.*\({hint}",
        ):
            open_dataset("digits", **{argument: split})

    @pytest.mark.parametrize("num_parts", [1, 3, 7, 500])
    def test_parts_cover_a_split_once(self, digits, num_parts):
        split = "train[100:300]+test[5:20]"
        parts = [
            digits.ranges(split, part, num_parts) for part in range(num_parts)
        ]
        found = [
            (name, index)
            for part in parts
            for name, first, last in part
            for index in range(first, last)
        ]
        want = [("train", i) for i in range(100, 300)]
        assert found == want + [("test", i) for i in range(5, 20)]
        sizes = {sum(b - a for _, a, b in part) for part in parts}
        assert max(sizes) - min(sizes) <= 1

    def test_ranges_are_what_tfds_reads(self, digits):
        want = [
            (row["image"].numpy().tobytes(), int(row["label"]))
            for split in ("train[1400:]", "test[:9]")
            for row in digits.reader.builder.as_dataset(split)
        ]
        assert want == [
            (image.numpy().tobytes(), int(label))
            for image, label in digits.examples("train[1400:]+test[:9]")
        ]


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


MOCKED = [
    # name, the same in TFDS, splits, classes, pixels, splits to use
    ("cifar10", "", "train test", 10, 32, ("train", "test")),
    ("cifar100", "", "train test", 100, 32, ("train", "test")),
    (
        "oxford_flowers102",
        "",
        "train test validation",
        102,
        None,
        ("train", "test"),
    ),
    ("oxford_iiit_pet", "", "train test", 37, None, ("train", "test")),
    (
        "imagenet2012",
        "",
        "train validation test",
        1000,
        None,
        ("train", "validation"),
    ),
    ("imagenet2012_real", "", "validation", 1000, None, (None, "validation")),
    (
        "imagenet_v2",
        "imagenet_v2/matched-frequency",
        "test",
        1000,
        None,
        (None, "test"),
    ),
    ("mnist", "", "train test", 10, 28, ("train", "test")),
]


@pytest.mark.parametrize(
    "name, tfds_name, splits, classes, size, used",
    MOCKED,
    ids=[row[0] for row in MOCKED],
)
def test_any_data_set_of_tfds(
    name, tfds_name, splits, classes, size, used, tmp_path
):
    """TFDS makes up the examples; nothing is downloaded."""
    write_metadata(tfds_name or name, splits.split(), tmp_path)
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):
        dataset = open_dataset(name)
        assert (dataset.train_split, dataset.eval_split) == used
        assert dataset.reader.image_shape[:2] == (size, size)
        assert len(dataset.class_names) == classes
        [(images, labels, weights)] = take(
            eval_batches(dataset, image_size=(24, 16), batch_size=8), -1
        )
        rows = list(dataset.reader.read([(used[1], 0, 8)]))
    assert images.shape == (8, 24, 16, dataset.channels)
    assert labels.shape == (8, classes)
    assert rows[3][2].numpy().decode().endswith("__3")
    for row, label, weight in zip(rows, labels, weights):
        want = np.unique(row[1])
        np.testing.assert_array_equal(np.flatnonzero(label), want)
        assert weight == bool(len(want)) and np.all(label <= 1)


def test_data_set_without_labels_is_an_error(tmp_path):
    write_metadata("celeb_a", ["train", "test"], tmp_path)
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):
        with pytest.raises(ValueError, match="features `image` and `label`"):
            open_dataset("celeb_a")


def test_table_names_are_all_tested():
    tested = {row[0] for row in MOCKED} - {"mnist"}
    digits = {"digits", "digits_0to4", "digits_5to9"}
    assert set(DATASETS) == digits | tested


def test_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="digits, .*cifar10, .*'digit'"):
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
    dataset = open_dataset(f"folder:{folder}", eval_split="holdout")
    assert dataset.num_examples(dataset.eval_split) == 6


def test_folder_to_evaluate_on_only(folder):
    shutil.rmtree(folder / "train")
    dataset = open_dataset(f"folder:{folder}")
    assert (dataset.train_split, dataset.eval_split) == (None, "test")


def test_folder_with_an_empty_split(folder):
    shutil.rmtree(folder / "test")
    (folder / "test/white").mkdir(parents=True)
    with pytest.raises(ValueError, match="images in each split.*'test'"):
        open_dataset(f"folder:{folder}")


def test_empty_folders_are_no_classes(folder):
    for name in ("train/aaa", "test/green"):
        (folder / name).mkdir()
    (folder / "train/aaa/notes.txt").write_text("no image")
    assert open_dataset(f"folder:{folder}").class_names == ["black", "white"]


def test_what_is_no_image_of_a_class_is_passed_over(folder):
    """What versions of code, Macs and editors leave behind."""
    want = open_dataset(f"folder:{folder}").reader.files
    for name in (
        ".DS_Store",
        ".cache/black/0.jpg",
        "train/0.jpg",
        "train/.git/0.jpg",
        "train/black/._0.jpg",
        "train/black/0.jpg.txt",
        "train/black/thumbnails.png/0.jpg",
    ):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(b"")
    reader = open_dataset(f"folder:{folder}").reader
    assert reader.class_names == ["black", "white"]
    assert reader.files == want


@pytest.mark.parametrize("ending", ["JPG", "Jpeg", "PNG", "webp", "bmp"])
def test_endings_of_images(folder, ending):
    (folder / "train/black/0.jpg").rename(folder / f"train/black/é 0.{ending}")
    assert open_dataset(f"folder:{folder}").num_examples("train") == 12


def test_a_slice_of_a_folder_has_images_of_all_classes(folder):
    """And the rest of the split has the other images."""
    dataset = open_dataset(
        f"folder:{folder}", train_split="train[:50%]", eval_split="train[50%:]"
    )
    names = [
        [
            name.numpy()
            for *_, name in dataset.reader.read(dataset.ranges(split))
        ]
        for split in (dataset.train_split, dataset.eval_split)
    ]
    assert len(set(names[0] + names[1])) == 12
    for half in names:
        assert len(half) == 6
        assert any(b"black" in n for n in half) and any(
            b"white" in n for n in half
        )


class TestTFRecords:
    @pytest.fixture
    def records(self, tmp_path):
        """Return a folder of three files to train on and one to test on."""
        (tmp_path / "labels.txt").write_text("cat\ndog\n")
        self.write(tmp_path / "train-00000-of-00003", range(5))
        self.write(tmp_path / "train-00001-of-00003", range(5, 6))
        self.write(tmp_path / "train-00002-of-00003", range(6, 10))
        self.write(tmp_path / "test-0.tfrecord", range(10, 13))
        return tmp_path

    def write(self, path, numbers, **changes):
        """Write 2x2 images whose pixels are their number; odd ones are dogs."""
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in numbers:
                pixels = tf.fill((2, 2, 3), tf.cast(number, tf.uint8))
                encoded = tf.io.encode_png(pixels).numpy()
                features = {
                    "image/encoded": {"bytes_list": {"value": [encoded]}},
                    "image/class/label": {
                        "int64_list": {"value": [number % 2]}
                    },
                    **changes,
                }
                features = {
                    key: tf.train.Feature(**value)
                    for key, value in features.items()
                    if value
                }
                example = tf.train.Example(features={"feature": features})
                writer.write(example.SerializeToString())

    def test_are_read_in_their_order(self, records):
        dataset = open_dataset(f"tfrecord:{records}")
        assert dataset.class_names == ["cat", "dog"]
        assert (dataset.train_split, dataset.eval_split) == ("train", "test")
        assert dataset.num_examples("train") == 10
        for split, numbers in (
            ("train", range(10)),
            ("test", range(10, 13)),
            ("train[3:7]", range(3, 7)),
            ("test[1:]+train[:6]", [11, 12, *range(6)]),
        ):
            found = [
                (int(image[0, 0, 0]), int(label))
                for image, label in dataset.examples(split)
            ]
            assert found == [(n, n % 2) for n in numbers]

    def test_names_are_files_and_records(self, records):
        reader = open_dataset(f"tfrecord:{records}").reader
        names = [n.numpy().decode() for *_, n in reader.read([("train", 4, 8)])]
        files = [f"{records}/train-0000{i}-of-00003" for i in range(3)]
        assert names == [
            f"{files[0]}:4",
            f"{files[1]}:0",
            f"{files[2]}:0",
            f"{files[2]}:1",
        ]

    @pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\n  \n"])
    @pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
    def test_labels_as_editors_write_them(self, records, start, end):
        names = start + "größe\r\nsmall dog".encode() + end
        (records / "labels.txt").write_bytes(names)
        dataset = open_dataset(f"tfrecord:{records}")
        assert dataset.class_names == ["größe", "small dog"]

    def test_empty_files_hold_nothing(self, records):
        want = len(list(open_dataset(f"tfrecord:{records}").examples("train")))
        self.write(records / "train-00001a", [])
        dataset = open_dataset(f"tfrecord:{records}")
        assert len(list(dataset.examples("train"))) == want

    def test_records_further_on_are_named(self, records):
        self.write(
            records / "train-00002-of-00003",
            [8],
            **{"image/class/label": None},
        )
        dataset = open_dataset(f"tfrecord:{records}")
        with pytest.raises(
            tf.errors.OpError, match=r"train-00002-of-00003:0.*/label"
        ):
            list(dataset.examples("train"))

    def test_records_without_an_image_are_bad_images(self, records):
        file = records / "test-1"
        self.write(file, [8], **{"image/encoded": None})
        bad_examples = BadExamples(1)
        dataset = open_dataset(f"tfrecord:{records}")
        [(_, _, weights)] = take(
            eval_batches(
                dataset,
                image_size=(2, 2),
                batch_size=4,
                bad_examples=bad_examples,
            ),
            -1,
        )
        np.testing.assert_array_equal(weights, [1, 1, 1, 0])
        assert bad_examples.names == [f"{file}:0"]

    def test_counts_agree_with_tensorflow(self, records):
        for file in records.glob("t*-*"):
            want = sum(1 for _ in tf.data.TFRecordDataset(str(file)))
            assert count_records(str(file)) == want

    @pytest.mark.parametrize("damage", ["cut", "text", "compressed"])
    def test_damaged_files(self, records, damage):
        file = records / "train-00001-of-00003"
        data = file.read_bytes()
        file.write_bytes(
            {
                "cut": data[:-1],
                "text": b"no records at all, but text",
                "compressed": gzip.compress(data),
            }[damage]
        )
        with pytest.raises(
            ValueError, match=f"{file} must be a whole, uncompressed"
        ):
            open_dataset(f"tfrecord:{records}")

    @pytest.mark.parametrize(
        "changes, hint",
        [
            ({"image/class/label": None}, "image/class/label"),
            ({"image/encoded": None}, "image/encoded"),
            (
                {"image/class/label": {"int64_list": {"value": [2]}}},
                "test-0.tfrecord:0.*label from 0 to 1",
            ),
        ],
    )
    def test_other_records(self, records, changes, hint):
        self.write(records / "test-0.tfrecord", [7], **changes)
        with pytest.raises(ValueError, match=f"must hold records.*{hint}"):
            open_dataset(f"tfrecord:{records}")

    @pytest.mark.parametrize("missing", ["labels.txt", "t*-*", "*"])
    def test_folder_that_is_none(self, records, missing):
        for path in list(records.glob(missing)):
            path.unlink()
        path = records / "absent" if missing == "*" else records
        with pytest.raises(ValueError, match="PATH/train-.*PATH/labels.txt"):
            open_dataset(f"tfrecord:{path}")
