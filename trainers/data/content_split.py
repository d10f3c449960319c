"""A split of files into training and test images by their content."""

import concurrent.futures
import hashlib
import os
from collections.abc import Sequence

TEST_SHARE = 0.2
START_BYTES = 2**14  # The header of a photo alone tells it from others.
NUM_THREADS = 16  # They wait for the disk.


def split_by_content(
    files: Sequence[tuple[str, str]], dataset: str, least_classes: int = 2
) -> dict[str, list[tuple[str, str]]]:
    """Split files into `train` and `test`.

    The side of a file depends on its length and its first bytes alone. So
    copies of a file are on the same side, renaming moves no file, and new
    files do not move old ones. About a fifth of the files is for testing. Only
    if all files of a class were on one side, the one nearest to the other side
    moves there, with its copies. The only file of a class is for training.

    Args:
        files: (path, class) pairs.
        dataset: Name of the data set, for errors.
        least_classes: Smallest number of classes.

    Returns:
        The pairs of each split, in an order that depends on the content as
        well.

    Raises:
        ValueError: If there are fewer classes, or no two different files of
            any.
        OSError: If a file cannot be read, other than for its permissions.
    """
    classes = sorted({label for _, label in files})
    if len(classes) < least_classes:
        raise ValueError(
            "`dataset` must have two classes or more, each a folder with "
            f"images or a label. Received: dataset={dataset!r} with "
            f"{', '.join(map(repr, classes)) or 'none'}"
        )
    with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        places = list(pool.map(place_by_content, (path for path, _ in files)))
    rows = sorted(zip(places, files))
    is_test = {place: place < TEST_SHARE for place in places}
    places_of = {label: [] for label in classes}
    for place, (_, label) in rows:
        places_of[label].append(place)
    for own in places_of.values():
        is_test[own[0]] = True
        is_test[own[-1]] = False
    if not any(is_test.values()):
        each = " of each class" if len(classes) > 1 else ""
        raise ValueError(
            f"`dataset` must have two different images or more{each}. "
            f"Received: dataset={dataset!r} with one{each}"
        )
    return {
        "train": [file for place, file in rows if not is_test[place]],
        "test": [file for place, file in rows if is_test[place]],
    }


def place_by_content(path: str | os.PathLike) -> float:
    """Return a number in [0, 1) that depends on the content of a file."""
    try:
        with open(path, "rb") as file:
            start = file.read(START_BYTES)
            length = os.fstat(file.fileno()).st_size
    except PermissionError:  # It is reported with the other bad files.
        start, length = os.fsencode(path), 0
    digest = hashlib.sha256(b"%d:%s" % (length, start)).digest()
    return int.from_bytes(digest[:8]) / 2**64
