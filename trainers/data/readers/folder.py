"""Data sets in a folder of image files: `folder:PATH`."""

import dataclasses
import os
import random

import tensorflow as tf

from keras_vit.image_decoding import decode_image
from trainers.data.splits import (
    EVAL_SPLITS,
    TRAIN_SPLITS,
    count_split,
    find_split,
)

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


@dataclasses.dataclass(frozen=True)
class FolderReader:
    """Reads the image files of a folder; a file is read when it is decoded.

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
        paths, labels = zip(*rows)
        labels = tf.constant(labels, tf.int64)
        return tf.data.Dataset.from_tensor_slices((list(paths), labels)).map(
            lambda path, label: (path, label, path)
        )

    def fetch(self, stored):
        return tf.io.read_file(stored)

    def decode(self, encoded):
        return decode_image(encoded)


def open_image_folder(path: str) -> FolderReader:
    """Return the images PATH/SPLIT/CLASS/IMAGE.{jpg,jpeg,png,bmp,gif,webp}.

    The classes are the folders that contain an image in at least one split,
    sorted by name. Hidden files and folders are skipped, as are files with
    other endings. The order of the files is random but always the same, so a
    slice of a split has images of all classes.

    Args:
        path: Path of the folder.

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
            "`dataset=folder:PATH` must name a folder of the form "
            "PATH/train/CLASS/IMAGE.jpg and PATH/test/CLASS/IMAGE.jpg. "
            f"Received: PATH={path!r}"
        )
    for split, rows in found.items():
        if not rows:
            raise ValueError(
                "`dataset=folder:PATH` must have images in each split. "
                f"Received: PATH={path!r} with no image in its split {split!r}"
            )
    names = sorted({label for rows in found.values() for _, label in rows})
    number = {name: index for index, name in enumerate(names)}
    return FolderReader(
        names,
        {
            split: [(file, number[label]) for file, label in rows]
            for split, rows in found.items()
        },
    )


def list_folders(path: str) -> list[str]:
    """Return the sorted names of the folders in `path` that are not hidden."""
    if not os.path.isdir(path):
        return []
    return sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def list_images(path: str) -> list[str]:
    """Return the sorted names of the image files in `path`."""
    return sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.name.lower().endswith(IMAGE_ENDINGS)
        and not entry.name.startswith(".")
        and entry.is_file()
    )
