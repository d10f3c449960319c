"""FORMATS: the export formats, each in its own file."""

import importlib
import os
import pkgutil

FORMATS = {
    info.name: importlib.import_module(f"{__name__}.{info.name}").FORMAT
    for info in pkgutil.iter_modules(__path__)
}


def find_format(path: str):
    """Return the format of an exported file or folder.

    Raises:
        ValueError: If no format has the suffix of the path, or a file of the
            folder.
    """
    is_folder = os.path.isdir(path)
    suffix = "" if is_folder else os.path.splitext(path)[1]
    for row in FORMATS.values():
        if row.suffix == suffix and (
            not is_folder or os.path.exists(os.path.join(path, row.entry))
        ):
            return row
    known = [row.suffix for row in FORMATS.values() if row.suffix]
    entries = [row.entry for row in FORMATS.values() if row.entry]
    raise ValueError(
        f"`path` must be a file that ends in {', '.join(known)}, or a folder "
        f"that contains {' or '.join(entries)}. Received: path={path!r}"
    )
