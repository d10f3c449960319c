"""The data sets that are lists of image files; needs no TensorFlow."""

import os
from collections.abc import Callable
from typing import NamedTuple

from trainers.data.readers.csv_table import list_csv
from trainers.data.readers.folder import (
    list_image_folder,
    list_unlabelled_images,
)


def is_file_list(name: str) -> bool:
    """Return whether a data set is a list of image files."""
    return name.partition(":")[0] in FILE_LISTS


def check_is_no_path(name: str):
    """Raise a ValueError if the name of a data set is a path without a kind."""
    path = os.path.expanduser(name)
    if os.path.isdir(os.path.join(path, "images")):
        kind, what = "pairs", "a folder of images and maps"
    elif os.path.isdir(path):
        kind, what = "folder", "a folder of images"
    elif os.path.isfile(path) and name.lower().endswith((".csv", ".tsv")):
        kind, what = "csv", "a table of images"
    else:
        return
    raise ValueError(
        f"`dataset` must be {kind}:PATH for {what}. "
        f"Received: dataset={name!r}. Did you mean {f'{kind}:{name}'!r}?"
    )


class FileList(NamedTuple):
    """A kind of lists of image files.

    Args:
        list_files: Takes PATH and LabelOptions, and returns the (path, label)
            pairs of each split.
        is_folder: Whether PATH is the folder of the images.
        has_class_folders: Whether folders in PATH give the classes.
    """

    list_files: Callable
    is_folder: bool = False
    has_class_folders: bool = False


FILE_LISTS = {
    "folder": FileList(
        list_image_folder, is_folder=True, has_class_folders=True
    ),
    "csv": FileList(list_csv),
    "images": FileList(list_unlabelled_images, is_folder=True),
}
LIST_NAMES = " or ".join(f"{kind}:PATH" for kind in FILE_LISTS)
