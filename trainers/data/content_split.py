"""A split of files into training and test images by their content."""

import collections
import concurrent.futures
import hashlib
import os
from collections.abc import Sequence

TEST_SHARE = 0.2
START_BYTES = 2**14  # The header of a photo tells it from most others.
NUM_THREADS = 16  # They wait for the disk.


def split_by_content(
    files: Sequence[tuple[str, str]], dataset: str, least_classes: int = 2
) -> dict[str, list[tuple[str, str]]]:
    """Split files into `train` and `test`.

    The side of a file depends on its content alone. So copies of a file are on
    the same side, renaming moves no file, and new files do not move old ones
    (but for the first of several files of the same length and start). About a
    fifth of the files is for testing. Only if all files of a class were on one
    side, the one nearest to the other side moves there, with its copies. The
    only file of a class is for training.

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
    places = place_by_content([path for path, _ in files])
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


def place_by_content(paths: Sequence[str]) -> list[float]:
    """Return a number in [0, 1) for each file that depends on its content.

    Equal files have equal numbers. Files are read whole only where others have
    the same length and the same start, as scans with a blank border do.
    """
    with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        digests = list(pool.map(_digest_start, paths))
        counts = collections.Counter(digests)
        alike = [i for i, digest in enumerate(digests) if counts[digest] > 1]
        wholes = list(pool.map(_digest_whole, (paths[i] for i in alike)))
    contents = collections.defaultdict(set)
    for index, whole in zip(alike, wholes):
        contents[digests[index]].add(whole)
    for index, whole in zip(alike, wholes):
        # Copies of one file stay where the file was without them.
        if len(contents[digests[index]]) > 1:
            digests[index] = whole
    return [int.from_bytes(digest[:8]) / 2**64 for digest in digests]


def _digest_start(path):
    """Return a digest of the length and the first bytes of a file."""
    try:
        with open(path, "rb") as file:
            start = file.read(START_BYTES)
            length = os.fstat(file.fileno()).st_size
    except PermissionError:  # It is reported with the other bad files.
        start, length = os.fsencode(path), 0
    return hashlib.sha256(b"%d:%s" % (length, start)).digest()


def _digest_whole(path):
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except PermissionError:  # See above; a table may name it twice.
        return b""
