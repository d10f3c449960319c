"""A reader of labelled image files."""

import dataclasses
import os
import unicodedata
from collections.abc import Sequence

import tensorflow as tf

from keras_vit.preprocessing.decoding import decode_image
from trainers.data.decoding import traced
from trainers.data.readers.image_paths import printable
from trainers.data.splits import count_split


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Reads image files; a file is read when it is decoded.

    Args:
        class_names: Names of the classes.
        files: (path, label) pairs of each split.
    """

    class_names: list[str]
    files: dict[str, list[tuple[str, int]]]
    image_shape = (None, None, 3)
    train_split = eval_split = None
    shuffle_buffer = 250_000  # It holds paths, which are smaller than images.
    has_exif = True

    @property
    def splits(self):
        return {n: count_split(n, len(rows)) for n, rows in self.files.items()}

    def read(self, ranges):
        rows = [
            row
            for name, first, last in ranges
            for row in self.files[name][first:last]
        ]
        # As bytes, because a name need not be UTF-8.
        paths = tf.constant([os.fsencode(path) for path, _ in rows])
        labels = tf.constant([label for _, label in rows], tf.int64)
        return tf.data.Dataset.from_tensor_slices((paths, labels)).map(
            lambda path, label: (path, label, path)
        )

    def with_forms_of(self, class_names):
        """Return the reader with classes named and numbered as in a model.

        Names that differ in their Unicode form are those of one class.

        Args:
            class_names: The classes of the model, in the order of its logits.
        """
        by_form = {normal_form(name): name for name in class_names}
        own = [by_form.get(normal_form(n), n) for n in self.class_names]
        order = sorted(own)
        if sorted(own) == sorted(class_names):
            order = list(class_names)
        new = [order.index(name) for name in own]
        return dataclasses.replace(
            self,
            class_names=order,
            files={
                split: [(path, new[label]) for path, label in rows]
                for split, rows in self.files.items()
            },
        )

    def fetch(self, stored):
        return tf.io.read_file(stored)

    def decode(self, encoded):
        return traced(decode_image)(encoded)


def number_classes(files: dict[str, list[tuple[str, str]]]) -> ImageFiles:
    """Return the reader of files whose labels are class names.

    Names that differ only in their Unicode form, as of folders that came from
    a Mac and from elsewhere, are those of one class.

    Args:
        files: (path, class) pairs of each split.

    Raises:
        ValueError: If a name is not UTF-8 or has a line break.
    """
    forms = {}
    for rows in files.values():
        for _, label in rows:
            forms.setdefault(normal_form(label), set()).add(label)
    check_names([name for found in forms.values() for name in found])
    shown = {
        form: found.pop() if len(found) == 1 else form
        for form, found in forms.items()
    }
    names = sorted(shown.values())
    number = {form: names.index(name) for form, name in shown.items()}
    return ImageFiles(
        names,
        {
            split: [(file, number[normal_form(label)]) for file, label in rows]
            for split, rows in files.items()
        },
    )


def normal_form(name: str) -> str:
    """Return the name of a class in the form in which equal ones are equal."""
    return unicodedata.normalize("NFC", name)


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
