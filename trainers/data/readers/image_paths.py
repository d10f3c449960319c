"""Paths of image files; needs no TensorFlow, so that --help is fast."""

import importlib.util
import os
import warnings
from collections.abc import Iterator


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

    Args:
        rows: Tuples that begin with a path.
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
    listed = [printable(path) for path in sorted(paths)[:NUM_LISTED]]
    more = len(paths) - len(listed)
    warnings.warn(
        f"{len(paths):,} {what}{' is' if len(paths) == 1 else 's are'} {fate}: "
        f"{', '.join(listed)}" + (f" and {more:,} more" if more else ""),
        stacklevel=3,
    )


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
PILLOW_ENDINGS = (*HEIF_ENDINGS, ".avif", ".tif", ".tiff")
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp"),
    *PILLOW_ENDINGS,
)
