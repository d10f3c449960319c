"""Finding and reading the `.keras` file of a model."""

import os
import zipfile

import keras

from trainers.paths import Path, as_path, first_line

RUN_MODEL = "model.keras"
RUN_RECIPE = "recipe.json"


def find_model_file(path_or_name: str) -> str:
    """Return the model.keras in the folder of a run; other paths unchanged.

    Args:
        path_or_name: A path, or the name of a published model.
    """
    if path_or_name.endswith(".keras"):
        return path_or_name
    try:
        folder = as_path(os.path.expanduser(path_or_name))
    except ValueError:  # A scheme of downloads, such as hf://.
        return path_or_name
    if any((folder / name).exists() for name in (RUN_MODEL, RUN_RECIPE)):
        return str(folder / RUN_MODEL)
    return path_or_name


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
