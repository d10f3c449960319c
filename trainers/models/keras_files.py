"""Finding the `.keras` file of a model."""

import os

from keras_vit.model_files import RUN_MODEL, RUN_RECIPE
from trainers.paths import as_path


def find_model_file(path_or_name: str) -> str:
    """Return the model.keras in the folder of a run; otherwise the path itself.

    Args:
        path_or_name: A path, which may begin with `~`, or the name of a
            published model.
    """
    if is_run_folder(path_or_name):
        return str(as_path(path_or_name) / RUN_MODEL)
    return os.path.expanduser(path_or_name)


def is_run_folder(path_or_name: str) -> bool:
    """Return whether a path is the folder of a run.

    Args:
        path_or_name: A path, or the name of a published model.
    """
    if path_or_name.endswith(".keras"):
        return False
    try:
        folder = as_path(path_or_name)
    except ValueError:  # A scheme of downloads, such as hf://.
        return False
    return any((folder / name).exists() for name in (RUN_MODEL, RUN_RECIPE))
