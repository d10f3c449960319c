"""What an export needs: a model that fits, a free path, a library."""

import importlib
import os

import keras
import numpy as np

from keras_vit.export.forward import is_graph
from keras_vit.layers.dtypes import is_quantized


def check_exportable(model: keras.Model, images: np.ndarray):
    """Raise a ValueError unless `model` can be exported and compared.

    Args:
        model: What is to be exported.
        images: What the answers are compared on.
    """
    if not len(images):
        raise ValueError(
            "`images` must hold an image or more to compare the answers on. "
            "Received: none"
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Exporting needs the TensorFlow backend of Keras. Received: "
            f"KERAS_BACKEND={keras.backend.backend()!r}"
        )
    if not is_graph(model):
        raise ValueError(
            "`model` must be functional or sequential, of one input and one "
            f"output. Received: {type(model).__name__} {model.name!r}"
        )
    if None in model.input_shape[1:]:
        raise ValueError(
            "`model` must have a fixed image size; call its "
            "`with_image_size` first. Received: "
            f"input_shape={model.input_shape}"
        )


def check_path(path: str, suffix: str = ""):
    """Raise a ValueError unless a file or folder can be written there.

    Args:
        path: Must not exist.
        suffix: What it must end in.
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


def check_extra(extra: str):
    """Raise a ModuleNotFoundError unless an extra is installed.

    Args:
        extra: A key of EXTRAS.
    """
    for name in EXTRAS[extra]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"This export needs {name}: pip install 'keras-vit[{extra}]'"
            ) from error


def in_float32(model: keras.Model) -> keras.Model:
    """Return `model` computing in float32, with equal weights.

    Raises:
        ValueError: If it is quantised, or computes in another type and is no
            VisionTransformer.
    """
    if is_quantized(model):
        raise ValueError(
            "A model quantised by Keras cannot be converted; export the model "
            f"it was quantised from. Received: model={model.name!r}"
        )
    if all(
        layer.compute_dtype == "float32" for layer in model._flatten_layers()
    ):
        return model
    if not hasattr(model, "with_dtype"):
        raise ValueError(
            "`model` must compute in float32 or be a VisionTransformer, which "
            f"is converted to it. Received: {type(model).__name__} "
            f"{model.name!r}"
        )
    return model.with_dtype("float32")


# The modules of the extras of this package that exports need.
EXTRAS = {
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "openvino": ("openvino",),
    "quantizer": ("ai_edge_quantizer",),
    "train": ("ai_edge_litert",),
}
