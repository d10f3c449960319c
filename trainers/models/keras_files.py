"""Finding and reading the `.keras` file of a model."""

import os
import zipfile

import keras

from keras_vit.errors import first_line
from keras_vit.run_folders import RUN_MODEL, RUN_RECIPE
from trainers.paths import Path, as_path


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


def load_keras_file(path: Path) -> keras.Model:
    """Return the model in a `.keras` file.

    Raises:
        ValueError: If the file does not contain a readable model.
    """
    try:
        return keras.saving.load_model(str(path), compile=False)
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        received = first_line(error)
        if received.startswith("File not found"):  # So Keras calls it.
            received = "no complete zip archive; the file is damaged"
        raise ValueError(
            f"{path} must be a model that Keras can read. Received: {received}"
        ) from None
