"""Paths of image files, and their split by content.

Needs no TensorFlow, so that --help is fast.
"""

import collections
import concurrent.futures
import hashlib
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence

from keras_vit.tables import list_first
from trainers.data.labels import classes_of, merge_rows, named_classes


def list_images(folder: str) -> list[str]:
    """Return the sorted paths of the image files in `folder`.

    Files in folders inside it are included, see `walk`. Hidden files are
    skipped, as are files with other endings than IMAGE_ENDINGS. Links that
    lead nowhere are included, as somebody misses what they stood for.
    """
    return sorted(
        path
        for path in walk(folder)
        if (is_image_name(path) and os.path.isfile(path)) or leads_nowhere(path)
    )


def walk(folder: str) -> Iterator[str]:
    """Yield the paths of the files in `folder` that are not hidden.

    Folders inside it are included, and linked ones, each once. A link to a
    folder around it is not followed. Hidden folders are skipped, as are
    SYSTEM_FOLDERS.
    """
    places, links, seen = [folder], [], set()
    while places or links:
        place = places.pop() if places else links.pop(0)
        real = os.path.realpath(place)
        around = os.path.dirname(os.path.abspath(place))
        if real in seen or (os.path.islink(place) and is_inside(around, real)):
            continue
        if seen and is_inside(folder, real):
            continue
        seen.add(real)
        folders = []
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                yield entry.path
            elif entry.is_symlink():  # The folder itself has the better name.
                links.append(entry.path)
            else:
                folders.append(entry.name)
        leave_out_hidden(folders)
        places += (os.path.join(place, name) for name in folders)


def is_image_name(path: str) -> bool:
    """Return whether the ending of a path is that of an image."""
    return path.lower().endswith(IMAGE_ENDINGS)


def leads_nowhere(path: str) -> bool:
    """Return whether a path is a broken link to a folder or an image."""
    return (
        os.path.islink(path)
        and not os.path.exists(path)
        and (is_image_name(path) or not os.path.splitext(path)[1])
    )


def is_inside(folder: str, other: str) -> bool:
    """Return whether a folder is the same as another one, or inside it."""
    places = [os.path.realpath(place) for place in (folder, other)]
    return os.path.commonpath(places) == places[1]


def leave_out_hidden(folders: list[str]):
    """Remove the names of folders that are hidden or made by systems."""
    folders[:] = (
        name
        for name in folders
        if not name.startswith(".") and name not in SYSTEM_FOLDERS
    )


def leave_out_unreadable(rows: list[tuple]) -> list[tuple]:
    """Return the rows without HEIC files that no package can read.

    Links that lead nowhere are left out, too. Warns about what is left out.
    """
    broken = {row[0] for row in rows if leads_nowhere(row[0])}
    if broken:
        warn_of(broken, "broken link", "left out")
    heif = set()
    if not can_read_heif():
        heif = {row[0] for row in rows if is_heif(row[0])} - broken
    if heif:
        advice = "; to read HEIC, install pi-heif or save them as JPEG"
        warn_of(heif, "HEIC image", f"left out{advice}")
    return [row for row in rows if row[0] not in broken | heif]


def printable(path: str | bytes | os.PathLike) -> str:
    r"""Return a path as text that every file and terminal of UTF-8 can hold.

    The bytes of a name that is not UTF-8, as in old zip archives, are written
    as escapes.

    Args:
        path: The path, as the functions of `os` return it, or its bytes.

    Example:
        >>> print(printable("photos/köln.jpg"), printable(b"k\xf6ln.jpg"))
        photos/köln.jpg k\xf6ln.jpg
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def warn_of(paths: set[str], what: str, fate: str):
    """Warn about some files, of which a few are named.

    Args:
        paths: The files.
        what: What one of them is.
        fate: What becomes of them.
    """
    listed = list_first([*map(printable, sorted(paths))], NUM_LISTED)
    number = f"{len(paths):,} {what}{' is' if len(paths) == 1 else 's are'}"
    warnings.warn(f"{number} {fate}: {listed}", stacklevel=3)


def can_read_heif() -> bool:
    """Return whether the package that reads HEIC images is installed."""
    return bool(importlib.util.find_spec("pi_heif"))


def is_heif(path: str) -> bool:
    """Return whether the ending of a path is that of a HEIC image."""
    return path.lower().endswith(HEIF_ENDINGS)


NUM_LISTED = 5
# Beside the files of zip archives made on macOS, and on drives of Synology,
# QNAP, Windows and Linux.
SYSTEM_FOLDERS = {
    *("__MACOSX", "@eaDir", "@Recycle", "$RECYCLE.BIN"),
    *("System Volume Information", "lost+found"),
}
HEIF_ENDINGS = (".heic", ".heif")
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp"),
    # TensorFlow does not read these.
    *(*HEIF_ENDINGS, ".avif", ".tif", ".tiff", ".npy"),
    *(".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
)


TEST_SHARE = 0.2
START_BYTES = 2**14  # The header of a photo tells it from most others.
NUM_THREADS = 16  # They wait for the disk.


def split_by_content(
    files: Sequence[tuple],
    dataset: str,
    least_classes: int = 2,
    joins_copies: bool = False,
    is_whole: bool = False,
) -> dict[str, list[tuple]]:
    """Split files into `train` and `test`.

    The side of a file depends on its content alone. So copies of a file are on
    the same side, renaming moves no file, and new files do not move old ones
    (but for the first of several files of the same length and start). About a
    fifth of the files is for testing. Only if all files of a class were on one
    side, the one nearest to the other side moves there, with its copies. The
    only file of a class is for training.

    Args:
        files: (path, label) pairs.
        dataset: Name of the data set, for errors.
        least_classes: Smallest number of classes.
        joins_copies: Whether files of equal content are one image that has
            the labels of all of them.
        is_whole: See `LabelOptions`. Without another image for testing, all
            are in `train`.

    Returns:
        The pairs of each split, in an order that depends on the content as
        well.

    Raises:
        ValueError: If there are fewer classes, or no two different files of
            any.
        OSError: If a file cannot be read, other than for its permissions.
    """
    classes = sorted(
        {name for _, label in files for name in named_classes(label)}
    )
    if len(classes) < (1 if is_whole else least_classes):
        raise ValueError(
            "`dataset` must have two classes or more, each a folder with "
            f"images or a label. Received: dataset={dataset!r} with "
            f"{', '.join(map(repr, classes)) or 'none'}"
        )
    places = place_by_content([path for path, _ in files])
    if joins_copies:
        files, places = merge_rows(files, places), dict.fromkeys(places)
    rows = sorted(
        zip(places, files),
        key=lambda row: (row[0], row[1][0], classes_of(row[1][1])),
    )
    is_test = {place: place < TEST_SHARE for place in places}
    balance_sides(rows, is_test)
    if is_whole and not any(is_test.values()):
        return {"train": [file for _, file in rows]}
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


def balance_sides(rows: list[tuple], is_test: dict[float, bool]):
    """Give each class images on both sides, where it has any two.

    Classes of few images come first. One image is moved for a class at most,
    the nearest to the other side that is not the last one of another class.

    Args:
        rows: (place, (path, label)) pairs, sorted.
        is_test: Whether the images of a place are for testing; changed.
    """
    places_of, classes_at = {}, {}
    for place, (_, label) in rows:
        for name in classes_of(label):
            places_of.setdefault(name, {})[place] = None
            classes_at.setdefault(place, {})[name] = None

    def count(name, side):
        return sum(is_test[place] == side for place in places_of[name])

    for name in sorted(places_of, key=lambda n: (len(places_of[n]), n)):
        places = list(places_of[name])
        # The only image of a class is for training.
        for side in (False, True) if len(places) > 1 else (False,):
            if count(name, side):
                continue
            nearest = places if side else places[::-1]
            free = [
                place
                for place in nearest
                if all(
                    count(other, not side) > 1
                    if len(places_of[other]) > 1
                    else not side
                    for other in classes_at[place]
                    if other != name
                )
            ]
            if free:
                is_test[free[0]] = side


def find_copies_of(paths: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return those of the files whose content one of the others has."""
    places = place_by_content([*paths, *others])
    known = set(places[len(paths) :])
    return [path for path, place in zip(paths, places) if place in known]


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
