"""Writers, which write arrays and a configuration as a file or a folder."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from keras_vit.files import draft_folder
from keras_vit.models.config import ViTConfig
from keras_vit.weights.containers import (
    write_json,
    write_npz,
    write_safetensors,
)
from keras_vit.weights.containers.descriptions import WEIGHTS
from keras_vit.weights.containers.folder import KERAS_HUB
from keras_vit.weights.stated_preprocessing import BESIDE

# Name in the file -> function that computes the array. Arrays are computed one
# at a time, so they are never all in memory.
Arrays = dict[str, Callable[[], np.ndarray]]
Writer = Callable[[pathlib.Path, Arrays, ViTConfig], None]


def npz_writer(prefix: str = "") -> Writer:
    """Return a writer of `.npz` files.

    Args:
        prefix: Prefix of all names.
    """

    def write(path, arrays, config):
        named = ((prefix + name, array) for name, array in _made(arrays))
        write_npz(path, named, _own_config(config))

    return write


def write_safetensors_file(path, arrays: Arrays, config: ViTConfig):
    """Write a `.safetensors` file.

    Args:
        path: The file.
        arrays: Functions that compute the arrays, by name.
        config: Configuration of the model.
    """
    shapes = {name: make().shape for name, make in arrays.items()}
    write_safetensors(path, _made(arrays), shapes, _own_config(config))


def folder_writer(make_jsons: Callable[[ViTConfig], dict[str, dict]]) -> Writer:
    """Return a writer of folders: `model.safetensors` and JSON files.

    Args:
        make_jsons: Returns the content of the JSON files, by file name.
    """

    def write(path, arrays, config):
        if path.exists() and not path.is_dir():
            raise ValueError(f"`path` must be a folder. Received: {path}")
        jsons = make_jsons(config)
        _check_others(path, {WEIGHTS, *jsons})
        # All files are complete before the first one replaces an old file.
        with draft_folder(path) as draft:
            write_safetensors_file(draft / WEIGHTS, arrays, config)
            for name, value in jsons.items():
                write_json(draft / name, value)
            path.mkdir(exist_ok=True)
            for file in sorted(draft.iterdir()):
                os.replace(file, path / file.name)

    return write


def _check_others(path, names):
    """Raise a ValueError if files that stay would hide new ones."""
    others = {KERAS_HUB, *BESIDE} - names
    others = sorted(name for name in others if (path / name).exists())
    if others:
        raise ValueError(
            "`path` must be a new folder, or one of the same format: "
            f"{', '.join(others)} there would be read in place of new files. "
            f"Received: {path}"
        )


def _made(arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and arrays, one at a time and in the order of names."""
    for name in sorted(arrays):
        yield name, arrays[name]()


def _own_config(config) -> dict:
    """Return the settings that names and shapes do not determine."""
    return {
        "num_heads": config.num_heads,
        "image_size": list(config.image_size),
        "gelu": config.activation,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "pooling": config.pooling,
        "position_embedding": config.position_embedding,
        "stem_epsilons": config.stem_epsilons,
        "preprocessing": dataclasses.asdict(config.preprocessing),
    }
