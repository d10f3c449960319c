"""Paths of image files; needs no TensorFlow, so that --help is fast."""

import importlib.util
import os
import warnings


def list_images(folder: str) -> list[str]:
    """Return the sorted paths of the image files in `folder`.

    Files in folders inside it are included. Hidden files and folders are
    skipped, as are SYSTEM_FOLDERS and files with other endings than
    IMAGE_ENDINGS.
    """
    found = []
    for place, folders, files in os.walk(folder, onerror=_raise):
        leave_out_hidden(folders)
        found += (
            os.path.join(place, name)
            for name in files
            if name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")
        )
    return sorted(path for path in found if os.path.isfile(path))


def leave_out_hidden(folders: list[str]):
    """Remove the names of folders that are hidden or made by systems."""
    folders[:] = (
        name
        for name in folders
        if not name.startswith(".") and name not in SYSTEM_FOLDERS
    )


def _raise(error):
    raise error  # os.walk would pass over a folder that it cannot read.


def leave_out_unreadable(rows: list[tuple]) -> list[tuple]:
    """Return the rows without HEIC files if no package can read those.

    Warns about the files that are left out.

    Args:
        rows: Tuples that begin with a path.
    """
    if can_read_heif():
        return rows
    left_out = [row[0] for row in rows if is_heif(row[0])]
    if left_out:
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        what = "image is" if len(left_out) == 1 else "images are"
        warnings.warn(
            f"{len(left_out)} HEIC {what} left out; to read HEIC, install "
            f"pi-heif or save them as JPEG: {', '.join(left_out[:5])}{more}",
            stacklevel=2,
        )
    return [row for row in rows if not is_heif(row[0])]


def can_read_heif() -> bool:
    """Return whether the package that reads HEIC images is installed."""
    return bool(importlib.util.find_spec("pi_heif"))


def is_heif(path: str) -> bool:
    """Return whether the ending of a path is that of a HEIC image."""
    return path.lower().endswith(HEIF_ENDINGS)


# Beside the files of zip archives made on macOS, and on drives of Synology.
SYSTEM_FOLDERS = {"__MACOSX", "@eaDir"}
HEIF_ENDINGS = (".heic", ".heif")
PILLOW_ENDINGS = (*HEIF_ENDINGS, ".avif", ".tif", ".tiff")
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp"),
    *PILLOW_ENDINGS,
)
