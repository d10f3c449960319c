import gzip

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.data.reading import take
from trainers.data.batches import eval_batches
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExamples
from trainers.data.readers.tfrecord import count_records


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
        with pytest.raises(ValueError, match=f"must have records.*{hint}"):
            open_dataset(f"tfrecord:{records}")

    @pytest.mark.parametrize("missing", ["labels.txt", "t*-*", "*"])
    def test_folder_that_is_none(self, records, missing):
        for path in list(records.glob(missing)):
            path.unlink()
        path = records / "absent" if missing == "*" else records
        with pytest.raises(ValueError, match="PATH/train-.*PATH/labels.txt"):
            open_dataset(f"tfrecord:{path}")
