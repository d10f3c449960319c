"""Reading models with an answer for each pixel, and heads alone.

They are dense_from_checkpoint and load_dense_head.
"""

import dataclasses
import os
import re

from keras_vit.layers.base import is_quantized
from keras_vit.models.dense import DensePredictor, dense_predictor
from keras_vit.models.tuning import layers_with_lora
from keras_vit.models.vit import VisionTransformer
from keras_vit.weights.containers import errors_name, open_file
from keras_vit.weights.families.huggingface_dense import (
    BACKBONE,
    DENSE_TYPES,
    UNUSED,
    encoder_part,
    name_of,
    read_head,
    to_ours,
)
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find
from keras_vit.weights.hub import locate
from keras_vit.weights.images import change_config
from keras_vit.weights.read import Plan, warn


def dense_from_checkpoint(
    path_or_name: str | os.PathLike,
    *,
    image_size: tuple[int, int] | int | None = None,
    dtype=None,
    name: str = "dense_predictor",
) -> DensePredictor:
    """Build the model of a checkpoint of DPT or Depth Anything; load it.

    Args:
        path_or_name: See `from_checkpoint`: a folder or a file as transformers
            writes DPTForDepthEstimation, DPTForSemanticSegmentation and
            DepthAnythingForDepthEstimation (also of V2), with its config.json.
        image_size: (height, width) in pixels, or one number for a square.
            Default: that of the file.
        dtype: Dtype policy of the layers, such as "mixed_bfloat16".
        name: Name of the model.

    Returns:
        A DensePredictor with a `load_report`, see `LoadReport`. Its outputs
        have the size of the images; depths are (B, H, W, 1).

    Raises:
        ValueError: If the file is damaged, incomplete or of another model. The
            message names the file and every array that does not fit.
        ConnectionError: If a download fails.
    """
    with open_file(locate(path_or_name)) as file:
        with errors_name(file.path):
            shapes = {raw: array.shape for raw, array in file.arrays.items()}
            config, layers = read_head(file.json, shapes)
            encoder_file = encoder_part(file)
        found = find(encoder_file, Known(image_size=image_size))
        fields = {} if image_size is None else {"image_size": image_size}
        plan = Plan(found, change_config(found.config, fields), is_new=True)
        encoder = VisionTransformer(plan.config, dtype=dtype)
        report = plan.load(encoder, found.notes)
        model = dense_predictor(encoder, config, name=name)
        used = [*report.used]
        if encoder_file is not file:
            used = [f"{BACKBONE}{raw}" for raw in used]
        used += _load_layers(file, model, layers, r"(neck|head)\..*")
        model.load_report = dataclasses.replace(
            report,
            used=tuple(used),
            ignored=tuple(raw for raw in file.arrays if raw not in set(used)),
        )
    warn(model.load_report, stacklevel=2)
    return model


def is_dense_checkpoint(path_or_name: str | os.PathLike) -> bool:
    """Return whether `dense_from_checkpoint` is meant for a checkpoint.

    Its configuration is that of DPT or Depth Anything. What else is wrong
    with it is said when it is loaded.

    Raises:
        ValueError: If there is no such file.
        ConnectionError: If a download fails.
    """
    with open_file(locate(path_or_name)) as file:
        return file.json.get("model_type") in DENSE_TYPES


def load_dense_head(model: DensePredictor, path_or_name: str | os.PathLike):
    """Load a linear head of DINOv2 or DINOv3 into a model.

    Such a file has the arrays of the head alone, and does not tell which blocks
    it reads; that is stated by the `DenseConfig` of the model.

    Args:
        model: A model with `head="linear"`, whose encoder is that of the head.
        path_or_name: See `from_checkpoint`: a `.safetensors` file with the
            state dict of a linear head of the code of DINOv2, for classes
            (`decode_head.conv_seg`) or depths (`decode_head.conv_depth`), or
            of a segmentor of DINOv3 (`segmentation_model.1.conv`).

    Raises:
        ValueError: If the file is damaged, of another head, or does not fit
            the model, which is unchanged then.
        ConnectionError: If a download fails.
    """
    if not isinstance(model, DensePredictor) or model.head.head != "linear":
        raise ValueError(
            "`model` must be a DensePredictor with head='linear'. "
            f"Received: model={getattr(model, 'name', model)!r}"
        )
    if is_quantized(model) or layers_with_lora(model):
        raise ValueError(
            "`model` must not be quantised and must have no LoRA updates. "
            f"Received: model={model.name!r}"
        )
    with open_file(locate(path_or_name)) as file:
        layers = _linear_layers(file)
        is_depth = layers == LINEAR_DEPTH
        if is_depth != bool(model.head.depth_bins):
            raise ValueError(
                f"{file.path} holds a head for "
                f"{'depths in bins' if is_depth else 'classes'}, which the "
                f"model does not have: depth_bins={model.head.depth_bins}"
            )
        _load_layers(file, model, layers, r".*")


# The names of the layers of linear heads, in the code of DINOv2 and DINOv3.
LINEAR_DEPTH = {"predictions": "decode_head.conv_depth"}
LINEAR = (
    {"head_norm": "decode_head.bn", "predictions": "decode_head.conv_seg"},
    LINEAR_DEPTH,
    {
        "head_norm": "segmentation_model.1.batchnorm_layer",
        "predictions": "segmentation_model.1.conv",
    },
)


def _linear_layers(file):
    """Return the row of LINEAR whose names a file has."""
    for layers in LINEAR:
        if f"{layers['predictions']}.weight" in file.arrays:
            return layers
    known = " or ".join(f"{layers['predictions']}.weight" for layers in LINEAR)
    raise ValueError(
        f"{file.path} must be a linear head of DINOv2 or DINOv3, with {known}"
    )


def _load_layers(file, model, layers, expected):
    """Load the layers of a head; return the names of the arrays.

    The names of all others that match the pattern `expected` must be UNUSED.
    """
    faults, values, used = [], [], []
    for weight in model.weights:
        raw = name_of(weight.path, layers)
        if raw is None:
            continue
        if raw not in file.arrays:
            faults.append(f"{raw} is missing")
            continue
        array = to_ours(file.read(raw))
        if array.shape != tuple(weight.shape):
            faults.append(
                f"{raw} has the shape {file.arrays[raw].shape}, and "
                f"{weight.path} {tuple(weight.shape)}"
            )
        values.append((weight, array))
        used.append(raw)
    faults += [
        f"{raw} is not expected"
        for raw in file.arrays
        if re.fullmatch(expected, raw)
        and raw not in used
        and not re.fullmatch(UNUSED, raw)
    ]
    if faults:
        raise ValueError(f"{file.path} does not fit: {'; '.join(faults)}")
    for weight, array in values:
        weight.assign(array)
    return used
