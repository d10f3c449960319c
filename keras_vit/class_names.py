"""Names of classes in the config.json of folders for other libraries."""

import os
import pathlib
from collections.abc import Sequence

from keras_vit.weights.containers.descriptions import read_json, write_json
from keras_vit.weights.families import LAYOUTS


def write_class_names(folder: str, layout: str, names: Sequence[str]):
    """Write the names of the classes into the config.json of a folder.

    Args:
        folder: What `save_checkpoint` wrote; a file has no such names.
        layout: Its layout, a key of LAYOUTS.
        names: The names in the order of the logits; none are not written.
    """
    path = pathlib.Path(folder).expanduser() / "config.json"
    entries_of = LAYOUTS[layout].class_entries
    if entries_of is None or not names or not path.is_file():
        return
    write_json(path, {**read_json(path), **entries_of(names)})


def stated_class_names(folder: str, num_classes: int) -> list[str] | None:
    """Return the names of the classes in the config.json of a folder.

    Args:
        folder: The folder of a checkpoint.
        num_classes: Number of classes of its model.

    Returns:
        The names in the order of the logits; None if the file names none, or
        not as many.
    """
    path = pathlib.Path(os.path.expanduser(folder), "config.json")
    content = read_json(path) if path.is_file() else {}
    names = content.get("label_names")
    by_index = content.get("id2label")
    if isinstance(by_index, dict) and len(by_index) == num_classes:
        names = [by_index.get(str(index)) for index in range(num_classes)]
    if not isinstance(names, list) or len(names) != num_classes:
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    # The names that transformers writes for classes without names.
    numbers = [f"LABEL_{index}" for index in range(num_classes)]
    return None if names == numbers else names
