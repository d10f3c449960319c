"""Checkpoint folders of Hugging Face, timm and keras-hub."""

import contextlib
import os
import pathlib

from keras_vit.weights.containers.checkpoint import (
    PICKLE_ENDINGS,
    WHY_NO_PICKLES,
    Checkpoint,
    read_through,
)
from keras_vit.weights.containers.descriptions import (
    OPEN_CLIP,
    WEIGHTS,
    config_beside,
    read_json,
)
from keras_vit.weights.containers.h5 import open_h5
from keras_vit.weights.containers.safetensors import open_safetensors

SHARD_INDEX = "model.safetensors.index.json"
KERAS_HUB = "model.weights.h5"


def open_checkpoint_folder(path: pathlib.Path) -> Checkpoint:
    """Return the arrays of a folder, without reading them.

    Raises:
        ValueError: If it does not contain a known kind of checkpoint.
    """
    names = sorted(item.name for item in path.iterdir())
    for needed, opener in FOLDER_KINDS:
        if set(needed) <= set(names):
            return opener(path)
    found = ", ".join(names[:10]) or "nothing"
    pickles = [name for name in names if name.endswith(PICKLE_ENDINGS)]
    advice = f". {pickles[0]} is {WHY_NO_PICKLES}" if pickles else ""
    raise ValueError(
        f"a folder must hold {WEIGHTS} (Hugging Face, timm) or "
        f"model.weights.h5 and config.json (keras-hub). It holds {found}"
        f"{advice}"
    )


def _open_keras_hub(path):
    """Return the arrays of a preset: the backbone and, if present, the head."""
    config = read_json(path / "config.json")
    files = [KERAS_HUB]
    if (path / "task.json").is_file():
        config["task"] = read_json(path / "task.json")
        files.append("task.weights.h5")
    with contextlib.ExitStack() as stack:
        entries = {}
        for file in files:
            part = stack.enter_context(open_h5(path / file))
            entries.update(part.entries)
        close = stack.pop_all().close
    return Checkpoint(path, entries, config, read_through(entries), close)


def _open_one_file(path, name=WEIGHTS):
    path = path / name
    if not path.is_file():
        raise ValueError(f"There is no file {path}")
    config = config_beside(path)
    checkpoint = open_safetensors(path)
    checkpoint.config = {**config, **checkpoint.config}
    return checkpoint


def _open_open_clip(path):
    return _open_one_file(path, OPEN_CLIP)


def _open_shards(path):
    """Return the arrays of several `.safetensors` files with an index."""
    weight_map = read_json(path / SHARD_INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{SHARD_INDEX} has no weight_map")
    shards = sorted({str(file) for file in weight_map.values()})
    for file in shards:
        if file != os.path.basename(file) or not file.endswith(".safetensors"):
            raise ValueError(
                f"{file!r} is not the name of a .safetensors file of the folder"
            )
    with contextlib.ExitStack() as stack:
        opened = {
            file: stack.enter_context(open_safetensors(path / file))
            for file in shards
        }
        lacking = [
            name
            for name, file in weight_map.items()
            if name not in opened[file].entries
        ]
        if lacking:
            raise ValueError(f"its files lack {', '.join(lacking)}")
        entries = {
            name: opened[file].entries[name]
            for name, file in weight_map.items()
        }
        config = path / "config.json"
        config = read_json(config) if config.is_file() else {}
        close = stack.pop_all().close
    return Checkpoint(path, entries, config, close=close)


# Required files -> function that opens the folder. The first match is used.
FOLDER_KINDS = (
    ((KERAS_HUB, "config.json"), _open_keras_hub),
    ((WEIGHTS,), _open_one_file),
    ((OPEN_CLIP,), _open_open_clip),
    ((SHARD_INDEX,), _open_shards),
)
