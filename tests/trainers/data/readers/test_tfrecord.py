import gzip

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.data.reading import take
from tests.trainers.made import write_records
from trainers.data.batches import eval_batches
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExamples


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
        images = [
            tf.io.encode_png(tf.fill((2, 2, 3), tf.cast(n, tf.uint8))).numpy()
            for n in numbers
        ]
        write_records(path, images, [n % 2 for n in numbers], **changes)

    def test_are_read_in_their_order(self, records):
        dataset = open_dataset(f"tfrecord:{records}")
        assert dataset.class_names == ["cat", "dog"]
        assert (dataset.train_split, dataset.eval_split) == ("train", "test")
        assert dataset.num_examples("train") == 10
        for split, numbers in (
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

    @pytest.mark.parametrize(
        "start, end", [(b"", b""), (b"\xef\xbb\xbf", b"\r\n\n  \n")]
    )
    def test_labels_as_editors_write_them(self, records, start, end):
        names = start + "größe\r\nsmall dog".encode() + end
        (records / "labels.txt").write_bytes(names)
        dataset = open_dataset(f"tfrecord:{records}")
        assert dataset.class_names == ["größe", "small dog"]

    @pytest.mark.parametrize(
        "text, fault", [("a\n\nb", "an empty line"), ("a\nb\na", "'a' twice")]
    )
    def test_classes_of_one_name_are_refused(self, records, text, fault):
        (records / "labels.txt").write_text(text)
        with pytest.raises(ValueError, match=f"`labels.txt`.*{fault}"):
            open_dataset(f"tfrecord:{records}")

    def test_empty_files_are_told(self, records):
        self.write(records / "train-00001-of-00003", [])
        with pytest.warns(UserWarning, match="without records.*train-00001-of"):
            dataset = open_dataset(f"tfrecord:{records}")
        assert len(list(dataset.examples("train"))) == 9

    @pytest.mark.parametrize(
        "old, new, fault",
        [
            ("train-00001-of-00003", None, "train-00001-of-00003 missing"),
            ("train-00001-of-00003", "train-00001-of-00004", "00003 and 00004"),
            (
                "test-0.tfrecord",
                "test-0-of-9999999999",
                "test-0000000001-of-9999999999, .* and 9,999,999,993 more",
            ),
        ],
    )
    def test_files_that_are_missing(self, records, old, new, fault):
        path = records / old
        path.rename(records / new) if new else path.unlink()
        with pytest.raises(ValueError, match=fault):
            open_dataset(f"tfrecord:{records}")

    def test_records_further_on_are_named(self, records):
        self.write(
            records / "train-00002-of-00003", [8], **{"image/class/label": None}
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
        with pytest.raises(ValueError, match=f"must have records.*{hint}"):
            open_dataset(f"tfrecord:{records}")
