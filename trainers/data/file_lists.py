"""The data sets that are lists of image files; needs no TensorFlow."""

import os

from trainers.data.readers.csv_table import list_csv
from trainers.data.readers.folder import list_image_folder
from trainers.data.readers.unlabelled import list_unlabelled_images


def check_is_no_folder(name: str):
    """Raise a ValueError if the name of a data set is a folder without kind.

    Args:
        name: The name, as a user gave it.
    """
    if os.path.isdir(os.path.expanduser(name)):
        raise ValueError(
            "`dataset` must be folder:PATH for a folder of images. "
            f"Received: dataset={name!r}. Did you mean {f'folder:{name}'!r}?"
        )


# Each takes PATH and returns the (path, class) pairs of each split.
FILE_LISTS = {
    "folder": list_image_folder,
    "csv": list_csv,
    "images": list_unlabelled_images,
}
LIST_NAMES = " or ".join(f"{kind}:PATH" for kind in FILE_LISTS)
