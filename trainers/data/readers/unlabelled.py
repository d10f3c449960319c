"""Data sets of images without labels: `images:PATH`."""

import os

from trainers.data.content_split import split_by_content
from trainers.data.readers.image_paths import leave_out_unreadable, list_images

# The one class of all images.
UNLABELLED = "unlabelled"


def list_unlabelled_images(path: str) -> dict[str, list[tuple[str, str]]]:
    """Return (path, UNLABELLED) pairs of all images in a folder.

    Images in folders inside it are included, whatever these are called. The
    splits `train` and `test` are those of `split_by_content`.

    Args:
        path: Path of the folder.

    Raises:
        ValueError: If there are not two different images.
        OSError: If a file cannot be read.
    """
    path = os.path.expanduser(path)
    rows = [(file, UNLABELLED) for file in list_images(path)]
    rows = leave_out_unreadable(rows)
    if not rows:
        raise ValueError(
            "`dataset=images:PATH` must name a folder with images in it or in "
            f"folders inside it. Received: PATH={path!r}"
        )
    return split_by_content(rows, f"images:{path}", least_classes=1)
