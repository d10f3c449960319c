"""The golden checkpoints: weights of other libraries and their answers."""

import functools
import pathlib

import numpy as np

from keras_vit import from_checkpoint

FOLDER = pathlib.Path(__file__).parents[1] / "golden"
NAMES = [
    *sorted(path.name for path in FOLDER.glob("official_*[a-z].npz")),
    *sorted(path.name for path in FOLDER.glob("big_vision_*[a-z].npz")),
    *sorted(path.name for path in FOLDER.glob("timm_*.safetensors")),
    "hf_vit",
    "keras_hub",
    "keras_hub_whole.weights.h5",
    "keras_hub_backbone",
    "vit_keras.h5",
    "vit_keras.weights.h5",
]
NAMES = [name for name in NAMES if not name.endswith(".expected.npz")]
HYBRIDS = {"official_hybrid.npz", "official_hybrid_root_only.npz"}
# What the file does not say, nor one beside it.
ARGUMENTS = {
    "keras_hub_backbone": {"pooling": "none"},
    "vit_keras.weights.h5": {"num_heads": 3, "image_size": (32, 48)},
}
ANSWERS = {
    "keras_hub_whole.weights.h5": "keras_hub",
    "vit_keras.weights.h5": "vit_keras",
}
FAMILIES = {
    "official": "official",
    "big": "big_vision",
    "timm": "timm",
    "hf": "huggingface",
    "keras": "keras_hub",
}


def path_of(name):
    return FOLDER / name


def family_of(name):
    if name.startswith("vit_keras"):
        return "vit_keras_h5" if name == "vit_keras.h5" else "vit_keras"
    return FAMILIES[name.split("_")[0]]


def tolerance_of(name):
    return 5e-5 if name in HYBRIDS else 1e-5


def arguments_of(name):
    return ARGUMENTS.get(name, {})


@functools.cache
def expected_of(name):
    """Return what the other library answered, read only."""
    stem = ANSWERS.get(name, name.split(".")[0])
    with np.load(FOLDER / f"{stem}.expected.npz") as file:
        return {key: file[key] for key in file.files}


def answer_of(name):
    """Return the answer that the model of a case must give."""
    expected = expected_of(name)
    return expected["logits"] if "logits" in expected else expected["encoded"]


@functools.cache
def model_of(name):
    """Return the model of a case; it must not be changed."""
    return from_checkpoint(path_of(name), **arguments_of(name))


def other_gelu(kind):
    return {"tanh": "exact", "exact": "tanh"}[kind]
