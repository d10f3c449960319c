"""Opening a checkpoint of any container: `open_checkpoint`, CONTAINERS."""

import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.weights.containers.checkpoint import (
    PICKLE_ENDINGS,
    WHY_NO_PICKLES,
    Checkpoint,
    errors_name,
)
from keras_vit.weights.containers.descriptions import config_beside
from keras_vit.weights.containers.folder import open_checkpoint_folder
from keras_vit.weights.containers.h5 import open_h5
from keras_vit.weights.containers.npz import open_npz
from keras_vit.weights.containers.safetensors import open_safetensors


class Container(NamedTuple):
    """A file format for named arrays.

    Args:
        open: Returns the `Checkpoint` of a path.
        has_config_beside: Whether a JSON file beside the file may describe the
            model.
    """

    open: Callable
    has_config_beside: bool = True


def open_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Open the checkpoint at `path`, without reading its arrays.

    Args:
        path: A `.npz`, `.safetensors` or `.h5` file, or a folder as Hugging
            Face, timm or keras-hub write it.

    Raises:
        ValueError: If there is no such file, or it is of another kind,
            truncated, damaged, or expands to more than a checkpoint can
            contain.
    """
    with errors_name(path):
        path = pathlib.Path(path).expanduser()
        ending = FOLDER if path.is_dir() else path.suffix.lower()
        if not (path.is_dir() or path.is_file()):
            raise ValueError(f"There is no file {path}")
        if ending not in CONTAINERS:
            raise ValueError(REFUSED_ENDINGS.get(ending, UNKNOWN_ENDING))
        container = CONTAINERS[ending]
        config = config_beside(path) if container.has_config_beside else {}
        checkpoint = container.open(path)
        checkpoint.config = {**config, **checkpoint.config}
        return checkpoint


FOLDER = "/"
# Ending of a path -> its container. "/" is the ending of a folder.
CONTAINERS = {
    ".npz": Container(open_npz),
    ".safetensors": Container(open_safetensors),
    ".h5": Container(open_h5),
    FOLDER: Container(open_checkpoint_folder, has_config_beside=False),
}

UNKNOWN_ENDING = (
    "the name of a checkpoint ends in .npz, .safetensors or .h5, and that of a "
    "model of Keras in .keras"
)
REFUSED_ENDINGS = {
    **dict.fromkeys(PICKLE_ENDINGS, f"it is {WHY_NO_PICKLES}"),
    ".keras": "it is a Keras model; open it with keras.saving.load_model",
    ".index": "it is a TensorFlow checkpoint, which has no names of a ViT",
}
