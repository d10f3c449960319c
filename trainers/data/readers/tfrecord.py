"""Data sets in a folder of TFRecord files: `tfrecord:PATH`."""

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from trainers.data.decoding import decode_pixels, describe_error
from trainers.data.labels import AUTO, LabelOptions
from trainers.data.pixels import USUAL, PixelOptions
from trainers.data.readers.image_files import read_class_names, to_vector
from trainers.data.readers.image_paths import (
    NUM_LISTED,
    printable,
    warn_of,
)
from trainers.data.splits import EVAL_SPLITS, TRAIN_SPLITS, count_split


@dataclasses.dataclass(frozen=True)
class TFRecordReader:
    """Reads files of `tf.train.Example` records.

    Args:
        class_names: Names of the classes.
        files: (path, number of records) pairs of each split.
        has_several_labels: Whether a record has a list of classes.
        pixels: How the pixels are read.
    """

    class_names: list[str]
    files: dict[str, list[tuple[str, int]]]
    has_several_labels: bool = False
    pixels: PixelOptions = USUAL
    train_split = eval_split = None
    shuffle_buffer = 50_000

    @property
    def image_shape(self):
        return None, None, self.pixels.channels or 3

    @property
    def has_exif(self):
        return self.pixels == USUAL  # `decode_pixels` reads all of the others.

    @property
    def splits(self):
        return {
            name: count_split(name, sum(count for _, count in rows))
            for name, rows in self.files.items()
        }

    def read(self, ranges):
        rows = []  # path, number of records to skip, number of records to read
        for name, first, last in ranges:
            start = 0
            for path, count in self.files[name]:
                low, high = max(first - start, 0), min(last - start, count)
                start += count
                if low < high:
                    rows.append((path, low, high - low))
        paths, lows, counts = zip(*rows)
        paths = [os.fsencode(path) for path in paths]

        def read_file(path, low, count):
            def parse(index, record):
                number = tf.strings.as_string(index)
                return self.parse(record, tf.strings.join([path, ":", number]))

            records = tf.data.TFRecordDataset(path).enumerate()
            return records.skip(low).take(count).map(parse)

        files = (
            list(paths),
            *(tf.constant(x, tf.int64) for x in (lows, counts)),
        )
        return tf.data.Dataset.from_tensor_slices(files).flat_map(read_file)

    def parse(self, record, name):
        """Return the example in a record; a missing image has no bytes."""
        features = tf.io.parse_single_example(
            record,
            {  # With defaults, because TensorFlow's errors name no record.
                "image/encoded": tf.io.FixedLenFeature((), tf.string, ""),
                LABEL: tf.io.RaggedFeature(tf.int64),
            },
        )
        label = features[LABEL]
        classes = len(self.class_names)
        is_right = tf.reduce_all((0 <= label) & (label < classes))
        what = f"has no {LABEL} from 0 to {classes - 1}:"
        if not self.has_several_labels:
            is_right &= tf.size(label) == 1
            what = f"has no single {LABEL} from 0 to {classes - 1}:"
        check = tf.debugging.Assert(is_right, [name, what, label])
        with tf.control_dependencies([check]):
            if self.has_several_labels:
                label = to_vector(label + 1, classes)
            else:
                label = label[0]
        return features["image/encoded"], label, name

    def fetch(self, stored):
        return stored

    def decode(self, encoded):
        return decode_pixels(encoded, self.pixels)


def open_tfrecords(path: str, options: LabelOptions = AUTO) -> TFRecordReader:
    """Return the examples in the TFRecord files PATH/SPLIT-*.

    SPLIT is `train`, `test`, `validation` or `val`. A record is a
    `tf.train.Example` with `image/encoded`, the bytes of an image file, and
    `image/class/label`, counted from 0; it has several labels if one of the
    first records has more than one. `PATH/labels.txt` names the classes, one
    per line. The files must not be compressed. Warns about empty files,
    which writers of more files than records leave behind.

    Raises:
        ValueError: If there is no such folder, a file is damaged, or one of
            the files SPLIT-00000-of-00002 is missing.
    """
    path = os.path.expanduser(path)
    labels_path = os.path.join(path, "labels.txt")
    files = collections.defaultdict(list)
    for file in sorted(os.listdir(path)) if os.path.isdir(path) else []:
        split = file.partition("-")[0]
        if "-" in file and split in TRAIN_SPLITS + EVAL_SPLITS:
            whole = os.path.join(path, file)
            files[split].append((whole, count_records(whole)))
    if not files or not os.path.isfile(labels_path):
        raise ValueError(
            "`dataset=tfrecord:PATH` must name a folder with files "
            "PATH/train-*, PATH/test-* and PATH/labels.txt. "
            f"Received: PATH={path!r}"
        )
    for split, rows in files.items():
        check_shards(path, split, [file for file, _ in rows])
    empty = [
        file for rows in files.values() for file, count in rows if not count
    ]
    if empty:
        warn_of(set(empty), "file", "without records")
    reader = TFRecordReader(
        read_class_names(labels_path),
        dict(files),
        options.kind == "several"
        or (options.kind == "auto" and have_lists(files)),
    )
    for split, info in reader.splits.items():
        if info.num_examples:
            check_first_record(path, reader, split)
    return reader


def check_shards(path: str, split: str, files: Sequence[str]):
    """Raise a ValueError unless all numbered files of a split are there."""
    numbers = collections.defaultdict(set)
    for file in files:
        found = re.fullmatch(r"(.+)-(\d+)-of-(\d+).*", os.path.basename(file))
        if found:
            numbers[found[1], found[3]].add(int(found[2]))
    faults = []
    for (name, total), present in numbers.items():
        missing = (n for n in range(int(total)) if n not in present)
        named = [
            f"{name}-{number:0{len(total)}d}-of-{total}"
            for number in itertools.islice(missing, NUM_LISTED)
        ]
        more = int(total) - len(present) - len(named)
        if named:
            faults.append(
                f"{', '.join(named)}{f' and {more:,} more' if more > 0 else ''}"
                " missing"
            )
    if len({name for name, _ in numbers}) < len(numbers):
        totals = sorted({total for _, total in numbers})
        faults.append(f"files of different numbers, {' and '.join(totals)}")
    if faults:
        raise ValueError(
            "`dataset=tfrecord:PATH` must have all files of a split, and none "
            f"of another writing. Received: PATH={path!r}, split {split!r} "
            f"with {'; '.join(faults)}"
        )


def check_first_record(path: str, reader: TFRecordReader, split: str):
    """Raise a ValueError unless the first record of a split is an example."""
    hint = ""
    try:
        stored, _, name = next(iter(reader.read([(split, 0, 1)])))
        if not stored.numpy():
            hint = f"{printable(name.numpy())} has no image/encoded"
    except tf.errors.OpError as error:
        hint = describe_error(error)
    if hint:
        raise ValueError(
            "`dataset=tfrecord:PATH` must have records with `image/encoded` "
            f"and `image/class/label`. Received: PATH={path!r} ({hint})"
        )


def have_lists(files: Mapping[str, list[tuple[str, int]]]) -> bool:
    """Return whether a label among the first records is a list of classes."""
    paths = [path for rows in files.values() for path, _ in rows]
    spec = {LABEL: tf.io.RaggedFeature(tf.int64)}
    try:
        for path in paths[:NUM_FILES_READ]:
            records = tf.data.TFRecordDataset(os.fsencode(path))
            for record in records.take(NUM_RECORDS_READ):
                label = tf.io.parse_single_example(record, spec)[LABEL]
                if len(label) > 1:
                    return True
    except tf.errors.OpError:
        pass  # The check of the first record says what is wrong.
    return False


LABEL = "image/class/label"
NUM_FILES_READ, NUM_RECORDS_READ = 4, 256


def count_records(path: str) -> int:
    """Return the number of records in a TFRecord file, from their lengths.

    A record has 8 bytes of length, 4 of checksum, the data, 4 of checksum.

    Raises:
        ValueError: If the file does not end where a record ends.
    """
    size, position, count = os.path.getsize(path), 0, 0
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            position += int.from_bytes(file.read(8), "little") + 16
            count += 1
    if position != size:
        raise ValueError(
            f"{path} must be a whole, uncompressed TFRecord file. Received: "
            "a file that does not end where a record ends"
        )
    return count
