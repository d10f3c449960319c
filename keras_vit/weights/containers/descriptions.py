"""JSON beside and inside checkpoints, which describes their models."""

import json
import os
import pathlib
import re
import warnings

from keras_vit.files import atomic_write
from keras_vit.weights.containers.checkpoint import errors_name, refuse_text

MAX_JSON = 2**24
# Names of files in a folder of Hugging Face's hub.
WEIGHTS = "model.safetensors"
OPEN_CLIP = "open_clip_model.safetensors"
OPEN_CLIP_JSON = "open_clip_config.json"
# Names of the same file in other types, such as model.fp16.safetensors.
OF_FOLDER = r"(pytorch_)?model([.-][\w-]+)*\.(safetensors|npz|h5)"
WEIGHT_ENDINGS = (".safetensors", ".npz", ".h5")
# Keys of which every description of a model has one.
DESCRIPTION_KEYS = frozenset(
    "architecture architectures model_type model_cfg class_name "
    "registered_name vision_config".split()
)
# Marks a description that this package wrote into a file.
WRITTEN_BY = "keras_vit"


def read_json(path: str | os.PathLike) -> dict:
    """Return the JSON object in the file `path`.

    Raises:
        ValueError: If it is not a JSON object or is larger than 16 MiB.
    """
    with errors_name(path):
        if not os.path.isfile(path):
            raise ValueError("it is not a file")
        refuse_text(path, "JSON")
        if os.path.getsize(path) > MAX_JSON:
            raise ValueError(f"it holds more than {MAX_JSON:,} bytes of JSON")
        return parse_json(pathlib.Path(path).read_bytes())


def parse_json(data: bytes) -> dict:
    """Return the JSON object in `data`.

    Raises:
        ValueError: If it is not a JSON object, or contains a name twice.
    """

    def once(pairs):
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is given twice")
        return found

    value = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def write_json(path: str | os.PathLike, value: dict):
    """Write `value` as JSON."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def config_beside(path: pathlib.Path) -> dict:
    """Return the JSON object beside a weights file, {} without one.

    The file is `model.json` beside `model.npz`. In a download from Hugging
    Face, it is `config.json` or `open_clip_config.json`: beside
    `model.safetensors`, and beside a file of another name if the folder has
    no other weights.

    Args:
        path: The weights file.
    """
    own = path.parent / f"{path.stem}.json"
    if own.is_file():
        return read_json(own)
    is_open_clip = path.name.startswith("open_clip")
    names = (
        [OPEN_CLIP_JSON] if is_open_clip else ["config.json", OPEN_CLIP_JSON]
    )
    for name in names:
        if not (path.parent / name).is_file():
            continue
        config = read_json(path.parent / name)
        if path.name == WEIGHTS or is_open_clip:
            return config
        if not config.keys() & DESCRIPTION_KEYS:
            continue
        if is_of_folder(path):
            return config
        warnings.warn(
            f"{path.parent / name} is not read for {path.name}, because the "
            f"folder has several files of weights. If it describes this one, "
            f"copy it to {own.name}.",
            stacklevel=2,
        )
    return {}


def is_of_folder(path: pathlib.Path) -> bool:
    """Return whether the JSON files in a folder are of a file in it.

    Args:
        path: A weights file.
    """
    if re.fullmatch(OF_FOLDER, path.name):
        return True
    rows = [n for n in os.listdir(path.parent) if n.endswith(WEIGHT_ENDINGS)]
    return rows == [path.name] and not path.name.startswith("open_clip")


def image_tower_of(json: dict) -> dict:
    """Return `vision_cfg` of an open_clip_config.json, {} without it.

    Args:
        json: The JSON beside a file.
    """
    model = json.get("model_cfg")
    tower = model.get("vision_cfg") if isinstance(model, dict) else None
    return tower if isinstance(tower, dict) else {}


def write_own_config(config: dict) -> str:
    """Return the description to write into a file, as JSON."""
    return json.dumps({"written_by": WRITTEN_BY, **config})


def read_own_config(text: bytes) -> dict:
    """Return the description that this package wrote, {} in other files."""
    try:
        config = parse_json(text)
    except (ValueError, RecursionError):
        return {}  # Another program's comment.
    return config if config.pop("written_by", None) == WRITTEN_BY else {}
