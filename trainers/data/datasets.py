"""Data sets of labelled images: opening them by name, and their splits.

A name is either that of a TFDS data set (see `readers.tfds`) or the path of a
folder or a file with a prefix from FILE_LISTS or READERS.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_vit.errors import first_line
from trainers.data.decoding import BadExamples, as_written, make_decode
from trainers.data.file_lists import (
    FILE_LISTS,
    LIST_NAMES,
    check_is_no_path,
    is_file_list,
)
from trainers.data.labels import AUTO, LabelOptions
from trainers.data.maps import MapRule
from trainers.data.pixels import USUAL, PixelOptions
from trainers.data.readers.image_files import ImageFiles, number_classes
from trainers.data.readers.image_paths import find_copies_of
from trainers.data.readers.pairs import open_pairs
from trainers.data.readers.tfds import DATASETS, open_tfds
from trainers.data.readers.tfrecord import open_tfrecords
from trainers.data.splits import (
    EVAL_SPLITS,
    TRAIN_SPLITS,
    Range,
    count_examples,
    cut_ranges,
    find_split,
    locate_split,
)


class ExampleReader(Protocol):
    """Reads the examples of a data set.

    An example is read as (stored, label, name): `stored` is small enough for
    a shuffle buffer, and `fetch` and `decode` turn it into an image. The label
    is a class, or a vector of classes that are all right, which is empty if the
    image has no label. Of several labels, it is a vector of floats: 1 for each
    class that the image has, 0 for the others, NaN if that is unknown.

    Attributes:
        class_names: Names of the classes, in the order of the labels.
        image_shape: (H, W, C); H and W are None if the sizes differ.
        splits: The splits, by name.
        train_split, eval_split: The default splits; None for the first of
            TRAIN_SPLITS and EVAL_SPLITS that exists.
        shuffle_buffer: Number of examples that the shuffle buffer may hold.
        has_several_labels: Whether images may have several labels.
        has_exif: Whether the files may be of any kind, as people have them:
            with an Exif orientation, or one that TensorFlow cannot read.
        maps: The MapRule of a reader with an answer for each pixel, which has
            `load_map` as well; others need not have it. See `readers.pairs`.
    """

    class_names: list[str]
    image_shape: tuple[int | None, int | None, int]
    splits: Mapping[str, tfds.core.SplitInfo]
    train_split: str | None
    eval_split: str | None
    shuffle_buffer: int
    has_several_labels: bool
    has_exif: bool

    def read(self, ranges: Sequence[Range]) -> tf.data.Dataset:
        """Return the examples of `ranges`, in a fixed order."""

    def fetch(self, stored: tf.Tensor) -> tf.Tensor:
        """Return the bytes of the image file of an example."""

    def decode(self, encoded: tf.Tensor) -> tf.Tensor:
        """Return the pixels (H, W, C) of an image file, as they are stored."""


ALL_SPLITS = "*"  # Stands for all splits of a data set, in their order.
NUM_LABELS_READ = 1024  # At once: one by one, they take three times as long.


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A labelled image data set with a training and an evaluation split.

    A split is written as in TFDS: `train`, `train[:98%]`, `train+validation`.

    Args:
        name: The name of the data set, as passed to `open_dataset`.
        reader: Reads its examples.
        train_split: Split to train on; None if there is none.
        eval_split: Split to evaluate on; None if there is none.
        needs_labels: Whether images without a label do not count.
    """

    name: str
    reader: ExampleReader
    train_split: str | None
    eval_split: str | None
    needs_labels: bool = True

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return list(self.reader.class_names)

    @property
    def model_class_names(self) -> list[str]:
        """Names of the classes of the models that are evaluated on it.

        A test set of ImageNet models may have only some of their classes.
        """
        names = getattr(self.reader, "model_class_names", None)
        return self.class_names if names is None else names

    def with_forms_of(
        self, class_names: Sequence[str], may_be_part: bool = False
    ) -> "ImageDataset":
        """Return the data set with its classes as a model has them.

        Equal names in another Unicode form, as of folders on a Mac, get that of
        the model. If all classes are equal, their order is that of the model.

        Args:
            class_names: Those of the model, in the order of its logits.
            may_be_part: Whether data that have only some of them get them all,
                as images to evaluate may.
        """
        if not class_names or not isinstance(self.reader, ImageFiles):
            return self
        reader = self.reader.with_forms_of(class_names, may_be_part)
        return dataclasses.replace(self, reader=reader)

    def with_pixels(self, options: PixelOptions) -> "ImageDataset":
        """Return the data set with its files read in another way.

        Raises:
            ValueError: If it has no files that could be read in another way.
        """
        if getattr(self.reader, "pixels", USUAL) == options:
            return self
        if not hasattr(self.reader, "pixels"):
            raise ValueError(
                "`channels` and `pixel_range` are for files of images; the "
                f"images of this data set have {self.channels} channels of 8 "
                f"bits. Received: dataset={self.name!r}, "
                f"channels={options.channels}, "
                f"pixel_range={options.pixel_range}"
            )
        reader = dataclasses.replace(self.reader, pixels=options)
        return dataclasses.replace(self, reader=reader)

    @property
    def logit_columns(self) -> slice | Sequence[int]:
        """The logits of these models that are for a class of the data set."""
        return getattr(self.reader, "logit_columns", slice(None))

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return self.reader.image_shape[-1]

    def num_examples(self, split: str | None) -> int:
        """Return the number of examples in `split`."""
        return count_examples(self.ranges(split))

    def examples(self, split: str | None) -> tf.data.Dataset:
        """Return the (image, label) pairs of `split`, in a fixed order."""
        decode = make_decode(self, BadExamples())
        return self.reader.read(self.ranges(split)).map(
            as_written(lambda *example: decode(*example)[:2]),
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    @property
    def maps(self) -> MapRule | None:
        """How the answers for each pixel are read; None if there are none."""
        return getattr(self.reader, "maps", None)

    @property
    def has_several_labels(self) -> bool:
        """Whether images may have several labels, each right or wrong alone."""
        return self.reader.has_several_labels

    def has_several_classes(self, split: str | None) -> bool:
        """Return whether an image of `split` may have several classes."""
        examples = self.reader.read(self.ranges(split))
        return examples.element_spec[1].shape.rank != 0

    def labels(self, split: str | None) -> np.ndarray:
        """Return the labels of `split`, in a fixed order.

        Shapes:
            returns: (N,), classes; of several labels, (N, classes).
        """
        examples = self.reader.read(self.ranges(split))
        labels = examples.map(lambda stored, label, name: label)
        batches = labels.batch(NUM_LABELS_READ).as_numpy_iterator()
        return np.concatenate([*batches])

    def ranges(
        self,
        split: str | None,
        part: int = 0,
        num_parts: int = 1,
        argument: str = "split",
    ) -> list[Range]:
        """Return the ranges of examples of `split`, or of a part of it.

        Args:
            split: A split, such as `train_split`.
            part: Index of the part, from 0.
            num_parts: Number of parts of the split. Their lengths differ by at
                most one.
            argument: Name of the argument with the split, for the error.

        Raises:
            ValueError: If there is no such split, or it is empty.
        """
        # There always is a split to evaluate on.
        argument = "train_split" if split is None else argument
        ranges = locate_split(self.name, self.reader.splits, split, argument)
        return cut_ranges(ranges, part, num_parts)


def share_images(
    left: ImageDataset, split: str, right: ImageDataset, other: str
) -> bool:
    """Return whether splits of two data sets have images in common.

    Equal image files are one image, wherever they are and whatever lists them.
    """
    ranges, others = left.ranges(split), right.ranges(other)
    if is_same_dataset(left.name, right.name):
        return any(
            name == other_name and first < other_last and other_first < last
            for name, first, last in ranges
            for other_name, other_first, other_last in others
        )
    if not all(isinstance(x.reader, ImageFiles) for x in (left, right)):
        return False
    paths, others = left.reader.paths(ranges), right.reader.paths(others)
    return bool(find_copies_of(paths, others))


def is_same_dataset(name: str, other: str) -> bool:
    """Return whether two names are of one data set, of any version."""

    def identify(name):
        kind, _, path = name.partition(":")
        if kind in FILE_LISTS or kind in READERS:
            return kind, os.path.realpath(os.path.expanduser(path))
        return (name, "") if name in DATASETS else (kind, "")

    return identify(name) == identify(other)


def open_comparable(
    dataset: ImageDataset,
    name: str,
    train_split: str | None = None,
    eval_split: str | None = None,
    labels: LabelOptions = AUTO,
) -> ImageDataset | None:
    """Return a data set that may have images of another one, see above.

    It is opened as by `open_dataset`. None if it has none, or cannot be opened
    any more.
    """
    if is_same_dataset(name, dataset.name):
        reader = dataset.reader
    elif not (is_file_list(name) and is_file_list(dataset.name)):
        return None
    else:
        try:
            reader = _open_reader(name, None, labels)
        except (ValueError, OSError):
            return None
    found = ImageDataset(
        name,
        reader,
        find_train_split(reader, train_split),
        find_eval_split(reader, eval_split),
    )
    try:
        for split in filter(None, (train_split, eval_split)):
            found.ranges(split)
    except ValueError:  # There was such a split.
        return None
    return found


def open_dataset(
    name: str,
    data_dir: str | None = None,
    train_split: str | None = None,
    eval_split: str | None = None,
    labels: LabelOptions = AUTO,
    pixels: PixelOptions = USUAL,
) -> ImageDataset:
    """Return the data set called `name`, prepared for reading.

    Args:
        name: A key of DATASETS, any name of TFDS, `folder:PATH` (see
            `list_image_folder`), `csv:PATH` (see `list_csv`), `images:PATH`
            (see `list_unlabelled_images`), `tfrecord:PATH` (see
            `open_tfrecords`) or `pairs:PATH` (see `open_pairs`).
        data_dir: Folder of the TFDS data sets; None for the default of TFDS.
        train_split: Split to train on, in the notation of TFDS. Default: that
            of the data set, or `train`.
        eval_split: Split to evaluate on, or ALL_SPLITS. Default: that of the
            data set, or the first of `test`, `validation` and `val`.
        labels: How the labels are read.
        pixels: How the pixels of image files are read.

    Raises:
        ValueError: If there is no such data set or split, or the data set has
            no labelled images or no split to evaluate on.
    """
    reader = _open_reader(name, data_dir, labels)
    train_split = find_train_split(reader, train_split)
    eval_split = find_eval_split(reader, eval_split)
    if eval_split is None:
        raise ValueError(
            f"`dataset` must have a split called {' or '.join(EVAL_SPLITS)}, "
            f"or `eval_split` name one. Received: dataset={name!r} with "
            f"{', '.join(reader.splits)}"
        )
    for argument, split in (
        ("train_split", train_split),
        ("eval_split", eval_split),
    ):
        if split is not None:
            locate_split(name, reader.splits, split, argument)
    found = ImageDataset(name, reader, train_split, eval_split)
    if labels.has_maps and not found.maps:
        raise ValueError(
            "`dataset` must have an answer for each pixel, as pairs:PATH, with "
            f"--objective={labels.kind}. Received: dataset={name!r}"
        )
    return found.with_pixels(pixels)


def find_train_split(reader: ExampleReader, split: str | None) -> str | None:
    """Return the split to train on, None if there is none."""
    split = split or reader.train_split
    return split or find_split(reader.splits, TRAIN_SPLITS)


def find_eval_split(reader: ExampleReader, split: str | None) -> str | None:
    """Return the split to evaluate on, perhaps all; None if there is none."""
    if split == ALL_SPLITS:
        return "+".join(reader.splits)
    split = split or reader.eval_split
    return split or find_split(reader.splits, EVAL_SPLITS)


def _open_reader(name, data_dir, labels):
    kind, _, path = name.partition(":")
    if kind in FILE_LISTS:
        return number_classes(FILE_LISTS[kind].list_files(path, labels))
    if kind in READERS:
        reader = READERS[kind](path, labels)
        if not hasattr(reader, "splits"):
            raise ValueError(
                f"DATASETS: {kind!r} must return a reader, such as "
                f"IndexedImages. Received: {reader!r}"
            )
        return reader
    try:
        return open_tfds(name, data_dir, labels)
    except ValueError as error:
        is_unknown = isinstance(error, tfds.core.DatasetNotFoundError)
        if TFDS_NAME.match(name) and not is_unknown:
            raise
        check_is_no_path(name)
        kinds = " or ".join(f"{kind}:PATH" for kind in READERS)
        raise ValueError(
            f"`dataset` must be one of {', '.join(DATASETS)}, any name of "
            f"tensorflow-datasets, {LIST_NAMES} or {kinds}. "
            f"Received: dataset={name!r} ({first_line(error)})"
        ) from None


TFDS_NAME = re.compile(r"[a-z_]\w*([:/]|$)", re.ASCII | re.IGNORECASE)
# The kinds of data sets that are named KIND:PATH, besides FILE_LISTS.
READERS = {"tfrecord": open_tfrecords, "pairs": open_pairs}
