"""The golden checkpoints: weights of other libraries and their outputs."""

import functools

import numpy as np

from keras_vit import from_checkpoint
from keras_vit.weights.containers import Array, File, open_file
from keras_vit.weights.families import LAYOUTS
from tests.golden import FOLDER
from tests.tiny import to_numpy

TOKEN = "official_token.npz"
TIMM = "timm_token.safetensors"

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
    """Return the outputs of the other library, read only."""
    stem = ANSWERS.get(name, name.split(".")[0])
    with np.load(FOLDER / f"{stem}.expected.npz") as file:
        return {key: file[key] for key in file.files}


def answer_of(name):
    """Return the output that the model of a case must give."""
    expected = expected_of(name)
    return expected["logits"] if "logits" in expected else expected["encoded"]


@functools.cache
def model_of(name):
    """Return the model of a case; it must not be changed."""
    return from_checkpoint(path_of(name), **arguments_of(name))


def assert_answers(model, name, tolerance=1e-5):
    """Assert that `model` has the outputs of the other library."""
    np.testing.assert_allclose(
        to_numpy(model(expected_of(name)["x"])),
        answer_of(name),
        rtol=0,
        atol=tolerance,
    )


@functools.cache
def _read(name):
    with open_file(path_of(name)) as checkpoint:
        return {n: checkpoint.read(n) for n in checkpoint.arrays}


def stored_in(name):
    """Return copies of the arrays of a golden checkpoint."""
    return {key: array.copy() for key, array in _read(name).items()}


def checkpoint_of(family, config):
    """Return a checkpoint of names and shapes alone."""
    shapes = {
        part.name: part.shape_in_file(config.num_heads)
        for parts in LAYOUTS[family].names(config).values()
        for part in parts
    }
    entries = {
        name: Array(shape, "<f4", None) for name, shape in shapes.items()
    }
    return File("there.npz", entries, {}, lambda: None)


def other_gelu(kind):
    return {"tanh": "exact", "exact": "tanh"}[kind]
