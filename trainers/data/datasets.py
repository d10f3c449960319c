"""The data sets: where labelled images come from, and their splits.

`digits` is a TFDS builder over the images that scikit-learn ships; any other
name is one of TFDS, `folder:PATH` is a folder of image files and
`tfrecord:PATH` a folder of TFRecord files. How they become batches is the
matter of `trainers.data.batches`.
"""

import collections
import dataclasses
import functools
import logging
import operator
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf
import tensorflow_datasets as tfds

from keras_vit.image_decoding import decode_photo, turn_upright

FOLDER_PREFIX = "folder:"
TFRECORD_PREFIX = "tfrecord:"
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
TRAIN_SPLITS = ("train",)
EVAL_SPLITS = ("test", "validation", "val")


def _is_news(record):
    """Return whether a warning is not about what TFDS itself calls."""
    return "FeatureConnector.dtype` is deprecated" not in record.getMessage()


# Its own code reads the old name, and warns of that in every program.
logging.getLogger("absl").addFilter(_is_news)

# What a `Source` reads: from a split, the examples `first` to before `last`.
Range = tuple[str, int, int]


class Source(Protocol):
    """Where the examples of a data set are stored.

    An example is read as (stored, label, name): `stored` is small enough to
    wait in a shuffle buffer, and `decode` makes the image of it. The label is
    a class or a vector of classes, none of them for an image without.

    If `is_turned`, images may have a note how to turn them upright: see
    `turn_upright`.
    """

    class_names: list[str]
    image_shape: tuple[int | None, int | None, int]
    splits: Mapping[str, tfds.core.SplitInfo]
    shuffle_buffer: int
    is_turned: bool

    def read(self, ranges: Sequence[Range]) -> tf.data.Dataset:
        """Return the examples of `ranges`, in a fixed order."""

    def fetch(self, stored: tf.Tensor) -> tf.Tensor:
        """Return the bytes of the image file of an example."""

    def decode(self, encoded: tf.Tensor) -> tf.Tensor:
        """Return the pixels (H, W, C) of an image file, as they are stored."""


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A labelled image data set with a split to train on and one to judge by.

    A split is written as in TFDS: `train`, `train[:98%]`, `train+validation`.

    Args:
        name: What it was asked for as.
        source: Where the examples are.
        train_split: What to train on; None if there is nothing.
        eval_split: What to evaluate on; None if there is nothing.
    """

    name: str
    source: Source
    train_split: str | None
    eval_split: str | None

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return list(self.source.class_names)

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return self.source.image_shape[-1]

    def num_examples(self, split: str | None) -> int:
        """Return how many examples `split` has."""
        return sum(last - first for _, first, last in self.ranges(split))

    def examples(self, split: str | None) -> tf.data.Dataset:
        """Return the (image, label) pairs of `split`, in a fixed order."""

        def decode(stored, label, name):
            encoded = self.source.fetch(stored)
            image = self.source.decode(encoded)
            if self.source.is_turned:
                image = turn_upright(image, encoded)
            return image, label

        return self.source.read(self.ranges(split)).map(
            decode, num_parallel_calls=tf.data.AUTOTUNE
        )

    def ranges(
        self, split: str | None, part: int = 0, num_parts: int = 1
    ) -> list[Range]:
        """Return where the examples of a part of `split` are stored.

        Args:
            split: Such as train_split.
            part: Number of the part, from 0.
            num_parts: The split is cut into so many, of one length or of two
                that differ by one.

        Raises:
            ValueError: If there is no such split, or it is empty.
        """
        found = locate_split(self.name, self.source.splits, split, "split")
        size = sum(last - first for _, first, last in found)
        start, stop = (size * p // num_parts for p in (part, part + 1))
        ranges, passed = [], 0
        for name, first, last in found:
            low = max(first, first + start - passed)
            high = min(last, first + stop - passed)
            passed += last - first
            if low < high:
                ranges.append((name, low, high))
        return ranges


def open_dataset(
    name: str,
    data_dir: str | None = None,
    train_split: str | None = None,
    eval_split: str | None = None,
) -> ImageDataset:
    """Return the data set called `name`, prepared for reading.

    Args:
        name: A key of DATASETS, any name of TFDS, `folder:PATH` (see
            `open_folder`) or `tfrecord:PATH` (see `open_tfrecords`).
        data_dir: Where TFDS keeps its data sets; None for its own default.
        train_split: What to train on, in the words of TFDS. Default: that of
            the row, or `train`.
        eval_split: What to evaluate on. Default: that of the row, or the
            first of `test`, `validation` and `val`.

    Raises:
        ValueError: If there is no such data set or split, or it is not one of
            labelled images with a split to evaluate on.
    """
    row = DATASETS.get(name, Row())
    if name.startswith(FOLDER_PREFIX):
        source = open_folder(name.removeprefix(FOLDER_PREFIX))
    elif name.startswith(TFRECORD_PREFIX):
        source = open_tfrecords(name.removeprefix(TFRECORD_PREFIX))
    else:
        source = open_tfds(name, row, data_dir)
    train_split = train_split or row.train_split
    train_split = train_split or find_split(source.splits, TRAIN_SPLITS)
    eval_split = eval_split or row.eval_split
    eval_split = eval_split or find_split(source.splits, EVAL_SPLITS)
    if eval_split is None:
        raise ValueError(
            f"`dataset` must have a split called {' or '.join(EVAL_SPLITS)}, "
            f"or `eval_split` name one. Received: dataset={name!r} with "
            f"{', '.join(source.splits)}"
        )
    for argument, split in (
        ("train_split", train_split),
        ("eval_split", eval_split),
    ):
        if split is not None:
            locate_split(name, source.splits, split, argument)
    return ImageDataset(name, source, train_split, eval_split)


def find_split(
    splits: Mapping[str, tfds.core.SplitInfo], candidates: Sequence[str]
) -> str | None:
    """Return the first of `candidates` that is in `splits`, if there is one."""
    return next((split for split in candidates if split in splits), None)


def locate_split(
    name: str,
    splits: Mapping[str, tfds.core.SplitInfo],
    split: str | None,
    argument: str,
) -> list[Range]:
    """Return where the examples of `split` are stored.

    Args:
        name: Of the data set.
        splits: Those of the data set.
        split: In the words of TFDS.
        argument: What the caller knows `split` as; the error shows it.

    Raises:
        ValueError: If there is no such split, or it has no examples.
    """
    hint, parts = "no examples", []
    try:
        if split is not None:
            spec = tfds.core.ReadInstruction.from_spec(split)
            parts = spec.to_absolute(splits)
    # TFDS raises the last for a split that is called "all".
    except (AssertionError, ValueError, RecursionError) as error:
        hint = str(error).strip().partition("\n")[0]
    ranges = []
    for part in parts:
        size = splits[part.splitname].num_examples
        first, last, _ = slice(part.from_, part.to).indices(size)
        if first < last:
            ranges.append((part.splitname, first, last))
    if not ranges:
        raise ValueError(
            f"`{argument}` must name examples of dataset={name!r}, which has "
            f"{', '.join(splits)}, such as 'train' or 'train[:98%]'. "
            f"Received: {argument}={split!r} ({hint})"
        )
    return ranges


def count_split(name: str, num_examples: int) -> tfds.core.SplitInfo:
    """Return what TFDS must know of a split to understand a slice of it."""
    return tfds.core.SplitInfo(
        name=name, shard_lengths=[num_examples], num_bytes=0
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """How a data set of TFDS is opened, where its name does not say it all.

    Args:
        builder: Takes data_dir and returns the TFDS builder; None for the
            one that TFDS has under the name.
        label: The feature that is the label: a class or a list of classes.
        train_split: What to train on; None for `train`, if there is one.
        eval_split: What to evaluate on; None for the usual one.
    """

    builder: Callable[..., tfds.core.DatasetBuilder] | None = None
    label: str = "label"
    train_split: str | None = None
    eval_split: str | None = None


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """The examples that a TFDS builder has prepared.

    They are read as they are stored, a JPEG or PNG: decoded, the images of a
    shuffle buffer would not fit into memory.

    Args:
        builder: The TFDS builder.
        label: Name of the feature that is the label.
    """

    builder: tfds.core.DatasetBuilder
    label: str = "label"
    shuffle_buffer = 50_000
    is_turned = False

    @property
    def class_names(self):
        feature = self.builder.info.features[self.label]
        return getattr(feature, "feature", feature).names

    @property
    def image_shape(self):
        return self.builder.info.features["image"].shape

    @property
    def splits(self):
        return self.builder.info.splits

    def read(self, ranges):
        instructions = [
            tfds.core.ReadInstruction(name, from_=first, to=last, unit="abs")
            for name, first, last in ranges
        ]
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel("ERROR")  # TFDS calls what TensorFlow deprecates.
        try:
            examples = self.builder.as_dataset(
                split=functools.reduce(operator.add, instructions),
                shuffle_files=False,
                decoders=tfds.decode.PartialDecoding(
                    {"image": True, self.label: True},
                    {"image": tfds.decode.SkipDecoding()},
                ),
                read_config=tfds.ReadConfig(
                    try_autocache=False,
                    interleave_cycle_length=1,
                    add_tfds_id=True,
                ),
            )
        finally:
            logger.setLevel(level)
        return examples.map(
            lambda row: (row["image"], row[self.label], row["tfds_id"])
        )

    def fetch(self, stored):
        return stored

    def decode(self, encoded):
        image = self.builder.info.features["image"].decode_example(encoded)
        return tf.ensure_shape(image, self.image_shape)


def open_tfds(name: str, row: Row, data_dir: str | None) -> TfdsSource:
    """Return the data set that TFDS has under `name`, prepared for reading.

    Args:
        name: Of TFDS, or what the row is called.
        row: How it is opened.
        data_dir: Where TFDS keeps its data sets; None for its own default.

    Raises:
        ValueError: If it is unknown, cannot be prepared or is not one of
            labelled images.
    """
    make = row.builder or functools.partial(tfds.builder, name)
    try:
        builder = make(data_dir=data_dir)
        builder.download_and_prepare()
    except tfds.core.DatasetNotFoundError as error:
        hint = str(error).strip().splitlines()[0]
        raise ValueError(
            f"`dataset` must be one of {', '.join(DATASETS)}, any name of "
            f"tensorflow-datasets, {FOLDER_PREFIX}PATH or "
            f"{TFRECORD_PREFIX}PATH. Received: dataset={name!r} ({hint})"
        ) from None
    except (AssertionError, ImportError) as error:
        # How TFDS says that files must be fetched by hand, or that a version
        # or a package is missing.
        raise ValueError(
            f"`dataset` could not be prepared: {error} "
            f"Received: dataset={name!r}"
        ) from None
    features = builder.info.features
    image, label = (
        features[key] if key in features else None
        for key in ("image", row.label)
    )
    label = getattr(label, "feature", label)
    if not isinstance(image, tfds.features.Image) or not isinstance(
        label, tfds.features.ClassLabel
    ):
        raise ValueError(
            f"`dataset` must have the features `image` and `{row.label}`. "
            f"Received: dataset={name!r} with {sorted(features)}"
        )
    return TfdsSource(builder, row.label)


@dataclasses.dataclass(frozen=True)
class FolderSource:
    """Image files, read when they are decoded.

    Args:
        class_names: Names of the classes.
        files: (path, label) pairs of each split.
    """

    class_names: list[str]
    files: dict[str, list[tuple[str, int]]]
    image_shape = (None, None, 3)
    shuffle_buffer = 250_000  # Of paths: five times the images of TFDS.
    is_turned = True

    @property
    def splits(self):
        return {n: count_split(n, len(rows)) for n, rows in self.files.items()}

    def read(self, ranges):
        rows = [
            row
            for name, first, last in ranges
            for row in self.files[name][first:last]
        ]
        paths, labels = zip(*rows)
        labels = tf.constant(labels, tf.int64)
        return tf.data.Dataset.from_tensor_slices((list(paths), labels)).map(
            lambda path, label: (path, label, path)
        )

    def fetch(self, stored):
        return tf.io.read_file(stored)

    def decode(self, encoded):
        return decode_photo(encoded)


def open_folder(path: str) -> FolderSource:
    """Return the images PATH/SPLIT/CLASS/IMAGE.{jpg,jpeg,png,bmp,gif,webp}.

    The classes are the folders that hold an image in some split, in the order
    of their names. Hidden files and folders are passed over, as are files with
    another ending. The files are put into an order that is random but always
    the same, so that a slice of a split has images of all classes.

    Args:
        path: Of the folder.

    Raises:
        ValueError: If there is no such folder, or a split has no images.
    """
    path = os.path.expanduser(path)
    found = {}
    for split in list_folders(path):
        rows = [
            (os.path.join(path, split, label, file), label)
            for label in list_folders(os.path.join(path, split))
            for file in list_images(os.path.join(path, split, label))
        ]
        random.Random(split).shuffle(rows)
        if rows or split in TRAIN_SPLITS + EVAL_SPLITS:
            found[split] = rows
    if not find_split(found, TRAIN_SPLITS + EVAL_SPLITS):
        raise ValueError(
            f"`dataset={FOLDER_PREFIX}PATH` must name a folder of the form "
            "PATH/train/CLASS/IMAGE.jpg and PATH/test/CLASS/IMAGE.jpg. "
            f"Received: PATH={path!r}"
        )
    for split, rows in found.items():
        if not rows:
            raise ValueError(
                f"`dataset={FOLDER_PREFIX}PATH` has no image in its split "
                f"{split!r}. Received: PATH={path!r}"
            )
    names = sorted({label for rows in found.values() for _, label in rows})
    number = {name: index for index, name in enumerate(names)}
    return FolderSource(
        names,
        {
            split: [(file, number[label]) for file, label in rows]
            for split, rows in found.items()
        },
    )


def list_folders(path):
    """Return the names of the folders in `path` that are not hidden, sorted."""
    if not os.path.isdir(path):
        return []
    return sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def list_images(path):
    """Return the names of the image files in `path`, sorted."""
    return sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.name.lower().endswith(IMAGE_ENDINGS)
        and not entry.name.startswith(".")
        and entry.is_file()
    )


@dataclasses.dataclass(frozen=True)
class TFRecordSource:
    """Files of `tf.train.Example` records.

    Args:
        class_names: Names of the classes.
        files: (path, number of records) pairs of each split.
    """

    class_names: list[str]
    files: dict[str, list[tuple[str, int]]]
    image_shape = (None, None, 3)
    shuffle_buffer = 50_000
    is_turned = True

    @property
    def splits(self):
        return {
            name: count_split(name, sum(count for _, count in rows))
            for name, rows in self.files.items()
        }

    def read(self, ranges):
        rows = []  # path, records to leave out, records to read
        for name, first, last in ranges:
            start = 0
            for path, count in self.files[name]:
                low, high = max(first - start, 0), min(last - start, count)
                start += count
                if low < high:
                    rows.append((path, low, high - low))
        paths, lows, counts = zip(*rows)

        def read_file(path, low, count):
            records = tf.data.TFRecordDataset(path).enumerate()
            return (
                records.skip(low)
                .take(count)
                .map(
                    lambda index, record: self.parse(
                        record,
                        tf.strings.join(
                            [path, ":", tf.strings.as_string(index)]
                        ),
                    )
                )
            )

        files = (
            list(paths),
            *(tf.constant(x, tf.int64) for x in (lows, counts)),
        )
        return tf.data.Dataset.from_tensor_slices(files).flat_map(read_file)

    def parse(self, record, name):
        """Return the example in a record; one without an image has no bytes."""
        features = tf.io.parse_single_example(
            record,
            {  # With defaults: errors of TensorFlow do not name the record.
                "image/encoded": tf.io.FixedLenFeature((), tf.string, ""),
                "image/class/label": tf.io.FixedLenFeature((), tf.int64, -1),
            },
        )
        label = features["image/class/label"]
        classes = len(self.class_names)
        tf.debugging.Assert(
            (0 <= label) & (label < classes),
            [name, f"has no image/class/label from 0 to {classes - 1}:", label],
        )
        return features["image/encoded"], label, name

    def fetch(self, stored):
        return stored

    def decode(self, encoded):
        return decode_photo(encoded)


def open_tfrecords(path: str) -> TFRecordSource:
    """Return the examples in PATH/SPLIT-*, files of TFRecords.

    SPLIT is `train`, `test`, `validation` or `val`. A record is a
    `tf.train.Example` with `image/encoded`, the bytes of an image file, and
    `image/class/label`, counted from 0. `PATH/labels.txt` names the classes,
    one a line. The files must not be compressed.

    Args:
        path: Of the folder.

    Raises:
        ValueError: If there is no such folder, or a file is damaged.
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
            f"`dataset={TFRECORD_PREFIX}PATH` must name a folder with files "
            "PATH/train-*, PATH/test-* and PATH/labels.txt, a class a line. "
            f"Received: PATH={path!r}"
        )
    with open(labels_path, encoding="utf-8-sig") as file:
        source = TFRecordSource(file.read().rstrip().splitlines(), dict(files))
    for split, info in source.splits.items():
        if info.num_examples:
            hint = ""
            try:
                stored, _, name = next(iter(source.read([(split, 0, 1)])))
                if not stored.numpy():
                    hint = f"{name.numpy().decode()} has no image/encoded"
            except tf.errors.OpError as error:
                hint = re.sub(r"^\{\{.*?\}\} ", "", error.message)
            if hint:
                raise ValueError(
                    f"`dataset={TFRECORD_PREFIX}PATH` must hold records with "
                    "`image/encoded` and `image/class/label`. "
                    f"Received: PATH={path!r} ({hint.splitlines()[0]})"
                )
    return source


def count_records(path: str) -> int:
    """Return how many records a TFRecord file has, from their lengths alone.

    Each is 8 bytes of length, 4 of checksum, the data, 4 of checksum.

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
            f"A TFRecord file is damaged, compressed or none: {path}"
        )
    return count


class Digits(tfds.core.GeneratorBasedBuilder):
    """The 1,797 handwritten digits that scikit-learn ships.

    8x8 pixels, 17 shades of grey. Every fifth image of each class is in the
    test split: no draw is involved, and the classes are balanced.
    """

    VERSION = tfds.core.Version("1.0.0")
    CLASSES = range(10)

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Handwritten digits, shipped with scikit-learn.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(
                        names=[str(digit) for digit in self.CLASSES]
                    ),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(is_test=False),
            "test": self._generate_examples(is_test=True),
        }

    def _generate_examples(self, is_test):
        from sklearn.datasets import load_digits

        digits = load_digits()
        seen = [0] * 10
        for index, (image, digit) in enumerate(
            zip(digits.images, digits.target)
        ):
            seen[digit] += 1
            if (seen[digit] % 5 == 0) == is_test and digit in self.CLASSES:
                pixels = (image * (255 / 16)).round().astype("uint8")
                yield index, {"image": pixels[..., None], "label": str(digit)}


class Digits0To4(Digits):
    """Those of the digits that are below 5: something to train on first."""

    CLASSES = range(5)


class Digits5To9(Digits):
    """The other digits: something to fine-tune on."""

    CLASSES = range(5, 10)


DATASETS: dict[str, Row] = {
    "digits": Row(Digits),
    "digits_0to4": Row(Digits0To4),
    "digits_5to9": Row(Digits5To9),
    "cifar10": Row(),
    "cifar100": Row(),
    "oxford_flowers102": Row(),
    "oxford_iiit_pet": Row(),
    # Its test split has no labels.
    "imagenet2012": Row(eval_split="validation"),
    "imagenet2012_real": Row(label="real_label"),
    "imagenet_v2": Row(
        functools.partial(tfds.builder, "imagenet_v2/matched-frequency")
    ),
}
