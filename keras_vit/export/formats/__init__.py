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
        ValueError: If no format has the suffix of the path.
    """
    suffix = "" if os.path.isdir(path) else os.path.splitext(path)[1]
    for row in FORMATS.values():
        if row.suffix == suffix:
            return row
    known = ", ".join(row.suffix or "a folder" for row in FORMATS.values())
    raise ValueError(
        f"An exported file must end in one of {known}. Received: {path}"
    )
