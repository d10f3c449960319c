"""Checks of the preconditions of an export: backend, model, packages, path."""

import importlib
import os
from collections.abc import Iterable

import keras
import numpy as np

from keras_vit.export.forward import is_graph
from keras_vit.models import FlexibleVisionTransformer
from keras_vit.packages import missing_packages


def check_exportable(model: keras.Model, images: np.ndarray):
    """Raise a ValueError unless `model` can be exported and compared.

    Args:
        model: The model to export.
        images: The images to compare outputs on.
    """
    check_backend()
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model. Received: {type(model).__name__}"
        )
    if not is_graph(model):
        raise ValueError(
            "`model` must be functional or sequential, with one input and one "
            f"output. Received: {type(model).__name__} {model.name!r}"
            f"{_advise(model)}"
        )
    if None in model.input_shape[1:]:
        raise ValueError(
            "`model` must have a fixed image size; call its "
            "`with_image_size` first. Received: "
            f"input_shape={model.input_shape}"
        )
    shape = np.shape(images)
    if shape[1:] != model.input_shape[1:] or not shape[0]:
        raise ValueError(
            "`images` must have at least one image to compare outputs on, each "
            f"{model.input_shape[1:]}. Received: shape={shape}"
        )


def _advise(model):
    """Return advice on a model that has no graph; empty if there is none."""
    if isinstance(model, FlexibleVisionTransformer):
        return "; export its `vision_transformer`"
    if isinstance(model, keras.Sequential) and not model.built:
        return ", which is not built; call it on images first"
    return ""


def check_backend():
    """Raise a ValueError unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Exporting needs the TensorFlow backend of Keras: set the "
            "environment variable KERAS_BACKEND=tensorflow before importing "
            f"keras. Received: KERAS_BACKEND={keras.backend.backend()}"
        )


def check_path(path: str, suffix: str = ""):
    """Raise a ValueError unless a new file or folder can be written there.

    Args:
        path: Must not exist.
        suffix: The required ending.
    """
    if os.path.exists(path):
        raise ValueError(
            "`path` must not exist yet; nothing is overwritten. "
            f"Received: path={path!r}"
        )
    if not path.endswith(suffix):
        raise ValueError(
            f"`path` must end in `{suffix}`. Received: path={path!r}"
        )


def check_packages(modules: Iterable[str]):
    """Raise a ModuleNotFoundError unless all modules can be imported.

    Args:
        modules: Import names.
    """
    missing, cause = [], None
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing.append(module)
            cause = cause or error
    if missing:
        raise missing_packages("This export", missing) from cause
