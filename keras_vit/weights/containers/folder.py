"""Checkpoint folders of Hugging Face, timm and keras-hub."""

import contextlib
import os
import pathlib
import re

from keras_vit.weights.containers.checkpoint import (
    PICKLE_ENDINGS,
    WHY_NO_PICKLES,
    Checkpoint,
    read_through,
)
from keras_vit.weights.containers.descriptions import (
    OPEN_CLIP,
    WEIGHT_ENDINGS,
    WEIGHTS,
    config_beside,
    read_json,
)
from keras_vit.weights.containers.h5 import open_h5
from keras_vit.weights.containers.npz import open_npz
from keras_vit.weights.containers.safetensors import open_safetensors

SHARD_INDEX = "model.safetensors.index.json"
KERAS_HUB = "model.weights.h5"


def open_checkpoint_folder(path: pathlib.Path) -> Checkpoint:
    """Return the arrays of a folder, without reading them.

    Raises:
        ValueError: If it does not contain a known kind of checkpoint.
    """
    names = sorted(item.name for item in path.iterdir())
    adapters = [n for n in names if re.match(r"adapter_(config|model)\.", n)]
    if adapters:
        raise ValueError(
            f"{adapters[-1]} is an adapter of PEFT, such as LoRA, for another "
            "model. Call `merge_and_unload()` in PEFT, and save the model "
            "that it returns"
        )
    for needed, opener in FOLDER_KINDS:
        if set(needed) <= set(names):
            return opener(path)
    indices = [name for name in names if re.fullmatch(ANY_INDEX, name)]
    shards = [name for name in names if re.search(SHARD, name)]
    weights = [name for name in names if name.endswith(WEIGHT_ENDINGS)]
    if len(indices) == 1 and set(weights) == set(shards):
        return _open_shards(path, indices[0])
    if len(weights) == 1 and not shards:
        return _open_one_file(path, weights[0])
    found = ", ".join(names[:10]) or "nothing"
    pickles = [name for name in names if name.endswith(PICKLE_ENDINGS)]
    advice = f". {pickles[0]} is {WHY_NO_PICKLES}" if pickles else ""
    if len(weights) > 1:
        advice = ". Pass the path of one of these files"
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
    checkpoint = FILES[path.suffix](path)
    checkpoint.config = {**config, **checkpoint.config}
    return checkpoint


def _open_open_clip(path):
    return _open_one_file(path, OPEN_CLIP)


def _open_shards(path, index=SHARD_INDEX):
    """Return the arrays of several `.safetensors` files with an index."""
    weight_map = read_json(path / index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map")
    shards = sorted({str(file) for file in weight_map.values()})
    for file in shards:
        if file != os.path.basename(file) or not file.endswith(".safetensors"):
            raise ValueError(
                f"{file!r} is not the name of a .safetensors file of the folder"
            )
    _check_all_named(path, index, shards)
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
        # An index may lack arrays of its files; transformers reads them.
        entries = {}
        for file, shard in opened.items():
            for name, entry in shard.entries.items():
                if weight_map.get(name, file) != file:
                    continue
                if name in entries:
                    raise ValueError(f"{name} is stored in two of its files")
                entries[name] = entry
        config = path / "config.json"
        config = read_json(config) if config.is_file() else {}
        close = stack.pop_all().close
    return Checkpoint(path, entries, config, close=close)


def _check_all_named(path, index, shards):
    """Raise a ValueError if an index lacks shards that lie beside it."""
    stems = {re.split(SHARD, file)[0] for file in shards}
    lost = [
        item.name
        for item in sorted(path.iterdir())
        if re.search(SHARD, item.name)
        and re.split(SHARD, item.name)[0] in stems
        and item.name not in shards
    ]
    if lost:
        raise ValueError(f"{index} does not name {', '.join(lost)}")


FILES = {".safetensors": open_safetensors, ".npz": open_npz, ".h5": open_h5}
SHARD = r"-\d+-of-\d+\.safetensors$"
# The name of an index has the variant, such as fp16, in one of two places.
ANY_INDEX = r"[\w.-]+\.safetensors\.index(\.[\w-]+)?\.json"
# Required files -> function that opens the folder. The first match is used.
FOLDER_KINDS = (
    ((KERAS_HUB, "config.json"), _open_keras_hub),
    ((WEIGHTS,), _open_one_file),
    ((OPEN_CLIP,), _open_open_clip),
    ((SHARD_INDEX,), _open_shards),
)
