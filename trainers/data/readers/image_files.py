"""A reader of labelled image files, and the files that it can read."""

import contextlib
import dataclasses
import io
import os
import unicodedata
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.image_decoding import decode_image
from keras_vit.preprocessing import read_image
from trainers.data.readers.image_paths import PILLOW_ENDINGS, printable
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
        if not self.needs_pillow:
            return decode_image(encoded)
        return tf.cond(
            has_other_format(encoded),
            lambda: decode_by_pillow(encoded),
            lambda: decode_image(encoded),
        )

    @property
    def needs_pillow(self) -> bool:
        """Whether TensorFlow cannot read some of the files."""
        return any(
            path.lower().endswith((*PILLOW_ENDINGS, ".webp", ".bmp"))
            for rows in self.files.values()
            for path, _ in rows
        )


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


def has_other_format(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether TensorFlow reads no such file, by its first bytes.

    It reads no HEIC, AVIF or TIFF, no animated WebP, and of BMP only the files
    with 24 or 32 bits for a pixel: it would ignore a palette.
    """
    start = tf.strings.substr(encoded, 0, LONGEST_HEADER)
    start = tf.io.decode_raw(start, tf.uint8, fixed_length=LONGEST_HEADER)

    def has(place, *words):
        return tf.reduce_any(
            [
                tf.reduce_all(start[place : place + len(word)] == [*word])
                for word in words
            ]
        )

    # Files of ISO media begin with the length of this entry.
    is_other = has(0, b"II*\0", b"MM\0*") | has(4, b"ftyp")
    is_animated = has(8, b"WEBPVP8X") & (start[20] & 2 > 0)
    is_bmp = has(0, b"BM") & ~has(28, bytes([24]), bytes([32]))
    return is_other | is_animated | is_bmp


def decode_by_pillow(encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels (H, W, 3) of a file that only Pillow can read."""
    image = tf.numpy_function(_read_bytes, [encoded], tf.uint8)
    image = tf.ensure_shape(image, (None, None, 3))
    # An error of the Python function would be printed for each image.
    check = tf.debugging.Assert(tf.size(image) > 0, ["not a readable image"])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(image)


def _read_bytes(encoded):
    register_heif()
    try:
        return read_image(io.BytesIO(encoded))
    # Pillow warns about some damaged files, which a program may turn into an
    # error.
    except (ValueError, OSError, UserWarning):
        return np.zeros((0, 0, 3), np.uint8)


def register_heif():
    """Let Pillow read HEIC files, if the package pi-heif is installed."""
    with contextlib.suppress(ModuleNotFoundError):
        import pi_heif

        pi_heif.register_heif_opener()


LONGEST_HEADER = 32  # Bytes that tell how a file is read.
