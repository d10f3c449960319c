"""A reader of labelled image files."""

import collections
import dataclasses
import os
import unicodedata
from collections.abc import Sequence

import tensorflow as tf

from trainers.data.decoding import decode_pixels
from trainers.data.labels import LabelSet, named_classes, renamed
from trainers.data.pixels import USUAL, PixelOptions
from trainers.data.readers.image_paths import printable
from trainers.data.splits import count_split


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Reads image files; a file is read when it is decoded.

    Args:
        class_names: Names of the classes.
        files: (path, label) pairs of each split. A label is the number of a
            class, or a LabelSet of numbers.
        has_several_labels: Whether the labels are LabelSets.
        pixels: How the pixels are read.
    """

    class_names: list[str]
    files: dict[str, list[tuple[str, int | LabelSet]]]
    has_several_labels: bool = False
    pixels: PixelOptions = USUAL
    train_split = eval_split = None
    shuffle_buffer = 250_000  # It holds paths, which are smaller than images.

    @property
    def image_shape(self):
        return None, None, self.pixels.channels or 3

    @property
    def has_exif(self):
        return self.pixels == USUAL  # `decode_pixels` reads all of the others.

    @property
    def splits(self):
        return {n: count_split(n, len(rows)) for n, rows in self.files.items()}

    def _rows(self, ranges):
        return [
            row
            for name, first, last in ranges
            for row in self.files[name][first:last]
        ]

    def paths(self, ranges):
        """Return the paths of the images of `ranges`."""
        return [path for path, _ in self._rows(ranges)]

    def read(self, ranges):
        rows = self._rows(ranges)
        # As bytes, because a name need not be UTF-8.
        paths = tf.constant([os.fsencode(path) for path, _ in rows])
        if self.has_several_labels:
            labels = to_ragged([label for _, label in rows])
        else:
            labels = tf.constant([label for _, label in rows], tf.int64)

        def arrange(path, label):
            if self.has_several_labels:
                label = to_vector(label, len(self.class_names))
            return path, label, path

        return tf.data.Dataset.from_tensor_slices((paths, labels)).map(arrange)

    def with_forms_of(self, class_names, may_be_part=False):
        """Return the reader with classes named and numbered as in a model.

        Names that differ in their Unicode form are those of one class. Of
        several labels, the classes of the model that the data do not name are
        classes, too.

        Args:
            class_names: The classes of the model, in the order of its logits.
            may_be_part: Whether this is so of one label an image, too.
        """
        by_form = {normal_form(name): name for name in class_names}
        own = [by_form.get(normal_form(n), n) for n in self.class_names]
        may_be_part = may_be_part or self.has_several_labels
        is_part = may_be_part and set(own) < set(class_names)
        order = sorted(own)
        if is_part or order == sorted(class_names):
            order = list(class_names)
        new = [order.index(name) for name in own]
        files = {
            split: [
                (path, renamed(label, new.__getitem__)) for path, label in rows
            ]
            for split, rows in self.files.items()
        }
        return dataclasses.replace(self, class_names=order, files=files)

    def fetch(self, stored):
        return tf.io.read_file(stored)

    def decode(self, encoded):
        return decode_pixels(encoded, self.pixels)


def to_ragged(labels: Sequence[LabelSet]) -> tf.RaggedTensor:
    """Return labels as numbers for `to_vector`, a row of any length each.

    A class n is n + 1, an absent one is -(n + 1); a 0 says that nothing is
    known of the rest.
    """
    rows = [
        [n + 1 for n in label.present]
        if label.absent is None
        else [
            0,
            *(n + 1 for n in label.present),
            *(-n - 1 for n in label.absent),
        ]
        for label in labels
    ]
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([number for row in rows for number in row], tf.int64),
        tf.constant([len(row) for row in rows], tf.int64),
    )


def to_vector(numbers: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return the labels of an image: 1, 0, or NaN where it is unknown.

    Shapes:
        numbers: (N,), see `to_ragged`. returns: (num_classes,), float32.
    """
    is_class = numbers != 0
    rest = tf.where(tf.reduce_all(is_class), 0.0, float("nan"))
    numbers = tf.boolean_mask(numbers, is_class)
    values = tf.where(numbers > 0, 1.0, 0.0)
    return tf.tensor_scatter_nd_update(
        tf.fill([num_classes], rest), tf.abs(numbers)[:, None] - 1, values
    )


def number_classes(
    files: dict[str, list[tuple[str, str | LabelSet]]],
) -> ImageFiles:
    """Return the reader of files whose labels are class names.

    Names that differ only in their Unicode form, as of folders that came from
    a Mac and from elsewhere, are those of one class.

    Args:
        files: (path, label) pairs of each split.

    Raises:
        ValueError: If a name is not UTF-8 or has a line break.
    """
    forms, several = {}, False
    for _, label in (row for rows in files.values() for row in rows):
        several |= isinstance(label, LabelSet)
        for name in named_classes(label):
            forms.setdefault(normal_form(name), set()).add(name)
    check_names([name for found in forms.values() for name in found])
    shown = {
        form: found.pop() if len(found) == 1 else form
        for form, found in forms.items()
    }
    names = sorted(shown.values())
    place = {name: index for index, name in enumerate(names)}

    def number(name):
        return place[shown[normal_form(name)]]

    numbered = {
        split: [(file, renamed(label, number)) for file, label in rows]
        for split, rows in files.items()
    }
    return ImageFiles(names, numbered, several)


def normal_form(name: str) -> str:
    """Return the name of a class in the form in which equal ones are equal."""
    return unicodedata.normalize("NFC", name)


def read_class_names(path: str) -> list[str]:
    """Return the class names in a file, one per line.

    Raises:
        ValueError: If the file is not UTF-8 text, or its lines are no names
            that differ.
    """
    file_name = os.path.basename(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            names = [line.strip() for line in file.read().rstrip().split("\n")]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`{file_name}` must be in UTF-8. Received: {path!r} ({error})"
        ) from None
    fault = f"{twice!r} twice" if (twice := find_twice(names)) else ""
    if "" in names:
        fault = "an empty line" if names[1:] else "no name"
    if fault:
        raise ValueError(
            f"`{file_name}` must name the classes, one per line, each once. "
            f"Received: {path!r} with {fault}"
        )
    check_names(names)
    return names


def find_twice(names: Sequence[str]) -> str | None:
    """Return a name that is there twice, if there is one."""
    counts = collections.Counter(names)
    return next((name for name, count in counts.items() if count > 1), None)


def check_names(names: Sequence[str]):
    """Raise a ValueError if files of class names cannot hold some names."""
    for name in names:
        if printable(name) != name:
            fault = f"{printable(name)}, which is not UTF-8; rename the folder"
        elif name.splitlines() != [name]:
            fault = f"{name!r}, which has a line break"
        else:
            continue
        raise ValueError(
            "`dataset` must have names of classes that fit in a line of text. "
            f"Received: {fault}"
        )
