"""The normalisation of the pixels that a checkpoint was trained with."""

import math
import pathlib
import re

import numpy as np

from keras_vit.preprocessing import NORMALIZATIONS
from keras_vit.weights.containers import Checkpoint, read_json

Mode = str | tuple[tuple[float, ...], tuple[float, ...]]
# Numbers in JSON files are rounded, such as 0.4815 for 0.48145466.
TOLERANCE = 1e-3


def find_normalization(checkpoint: Checkpoint) -> Mode | None:
    """Return the `mode` of `preprocess_input` that a checkpoint needs.

    The JSON files of timm, OpenCLIP and Hugging Face state mean and
    deviation. Without them, well-known models are recognised by the name of
    the architecture or of the file.

    Args:
        checkpoint: The open file or folder.

    Returns:
        A key of NORMALIZATIONS; (mean, deviation) if the file states other
        numbers; None if the mode is unknown.
    """
    config = checkpoint.config
    rows = [_read_preprocessor(pathlib.Path(checkpoint.path)), config]
    rows += [config.get(key) for key in ("pretrained_cfg", "preprocess_cfg")]
    for row in rows:
        if isinstance(row, dict):
            mode = _stated_mode(row)
            if mode is not None:
                return mode
    return _mode_by_name(checkpoint)


def describe_normalization(path: str, mode: Mode | None) -> tuple[str, ...]:
    """Return a note if images need another mode than the default.

    Args:
        path: Path of the checkpoint, for the note.
        mode: The mode that `find_normalization` returns.
    """
    if mode in (None, "vit"):
        return ()
    return (
        f"{path} was trained with images normalised in another way than the "
        "default of `preprocess_input`. Call "
        f"`keras_vit.preprocess_input(images, mode={mode!r})`.",
    )


def _read_preprocessor(path):
    """Return the JSON in which Hugging Face describes the preprocessing."""
    if not path.is_dir() and path.name != "model.safetensors":
        return {}
    folder = path if path.is_dir() else path.parent
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            inner = content.get("image_processor")
            return inner if isinstance(inner, dict) else content
    return {}


def _stated_mode(row):
    if row.get("do_normalize") is False:
        return "zero_one"
    for keys in (("mean", "std"), ("image_mean", "image_std")):
        mean, deviation = (_numbers(row.get(key)) for key in keys)
        if mean and deviation and len(mean) == len(deviation):
            if min(deviation) > 0:
                return _name_of(mean, deviation)
    return None


def _numbers(value):
    """Return a list of numbers as a tuple, None for anything else."""
    if not isinstance(value, list) or not 1 <= len(value) <= 4:
        return None
    if not all(type(n) in (int, float) and math.isfinite(n) for n in value):
        return None
    return tuple(map(float, value))


def _name_of(mean, deviation) -> Mode:
    found = np.array([mean, deviation])
    for name, row in NORMALIZATIONS.items():
        known = np.array([np.broadcast_to(part, 3) for part in row])
        if found.shape[1] in (1, 3):
            if np.allclose(found, known, rtol=0, atol=TOLERANCE):
                return name
    return mean, deviation


def _mode_by_name(checkpoint):
    path = pathlib.Path(checkpoint.path)
    texts = [checkpoint.config.get(key) for key in NAME_KEYS]
    texts.append(path.name)
    for text in filter(lambda text: isinstance(text, str), texts):
        for pattern, mode in MODES_BY_NAME.items():
            if re.search(rf"(?<![a-z])({pattern})(?![a-z])", text.lower()):
                return mode
    return None


# Keys of JSON files that name the architecture.
NAME_KEYS = ("architecture", "tag", "_name_or_path", "model_type")
# Patterns of model names -> normalisation, for files that do not state it.
# Source: the configurations of timm 1.0.31.
MODES_BY_NAME = {
    "deit3?|dino|dinov[23]|mae|vit_mae|i?jepa": "imagenet",
    "eva(02)?_(large|base|giant)|bamboo|clip": "clip",
    "miil": "zero_one",
}
