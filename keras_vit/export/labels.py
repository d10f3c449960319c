"""Reading the description in an exported file."""

import os
from typing import Any

from keras_vit.export.formats import find_format
from keras_vit.export.preconditions import check_packages


def read_description(path: str | os.PathLike) -> dict[str, Any]:
    """Return the description of an exported file or folder, of any format.

    The keys are `name`, `input`, `image_steps`, `mean`, `deviation`, `output`,
    `activation` and `class_names`; see `keras_vit.export.description`.

    Args:
        path: A file or folder that `export_model` wrote.

    Raises:
        ValueError: If it has no description.
        ModuleNotFoundError: If a package that reads the file is missing.
    """
    path = os.fspath(path)
    row = find_format(path)
    check_packages(row.readers)
    description = row.read(path)
    if description is None:
        raise ValueError(
            "`path` must be a file with a description, as `export_model` "
            f"writes it. Received: path={path!r}"
        )
    return description


def read_class_names(path: str | os.PathLike) -> list[str]:
    """Return the names of the classes in an exported file or folder.

    Args:
        path: A file or folder that `export_model` wrote, of any format.

    Raises:
        ValueError: If it names no classes.
        ModuleNotFoundError: If a package that reads the file is missing.
    """
    names = read_description(path)["class_names"]
    if names is None:
        raise ValueError(
            "`path` must be the export of a classifier. Received: "
            f"path={os.fspath(path)!r}, which returns features"
        )
    return names
