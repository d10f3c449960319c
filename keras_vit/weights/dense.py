"""Reading models with an answer for each pixel: dense_from_checkpoint."""

import dataclasses
import os
import re

import numpy as np

from keras_vit.models.dense import (
    FACTORS,
    DenseConfig,
    DensePredictor,
    dense_predictor,
)
from keras_vit.models.vit import VisionTransformer
from keras_vit.weights.containers import File, errors_name, open_file
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find
from keras_vit.weights.hub import locate
from keras_vit.weights.images import change_config
from keras_vit.weights.read import Plan, warn

BACKBONE = "backbone."
# Of the layers of a head, in our names, those of transformers; {k} counts the
# stages from the coarsest.
UNITS = {"stage": "residual_layer1", "unit": "residual_layer2"}
STAGE = {
    "stage_{i}_readout/projection": (
        "neck.reassemble_stage.readout_projects.{i}.0"
    ),
    "stage_{i}_projection": "neck.reassemble_stage.layers.{i}.projection",
    "stage_{i}_resize": "neck.reassemble_stage.layers.{i}.resize",
    "stage_{i}_neck": "neck.convs.{i}",
    "fusion_{i}_projection": "neck.fusion_stage.layers.{k}.projection",
    **{
        f"fusion_{{i}}_{unit}_{ours}_{part}": (
            f"neck.fusion_stage.layers.{{k}}.{theirs}.{layer}{part}"
        )
        for unit, theirs in UNITS.items()
        for ours, layer in (("conv", "convolution"), ("norm", "batch_norm"))
        for part in (1, 2)
    },
}
OUTPUTS = {
    ("depth_anything", "depth"): {
        "head_conv_1": "head.conv1",
        "head_conv_2": "head.conv2",
        "predictions": "head.conv3",
    },
    ("dpt", "depth"): {
        "head_conv_1": "head.head.0",
        "head_conv_2": "head.head.2",
        "predictions": "head.head.4",
    },
    ("dpt", "classes"): {
        "head_conv": "head.head.0",
        "head_norm": "head.head.1",
        "predictions": "head.head.4",
    },
}
ARRAYS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# What a head has that answers do not depend on: the branch of the coarsest map
# to which nothing is added, a head that only helps to train, counters.
UNUSED = (
    r"neck\.fusion_stage\.layers\.0\.residual_layer1\..*|auxiliary_head\..*"
    r"|.*\.num_batches_tracked"
)


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
        model = load_dense(file, image_size, dtype, name)
    warn(model.load_report, stacklevel=2)
    return model


def load_dense(
    file: File, image_size=None, dtype=None, name: str = "dense_predictor"
) -> DensePredictor:
    """Return the model in a file, see `dense_from_checkpoint`."""
    with errors_name(file.path):
        config, names = _read_head(file)
        encoder_file = _encoder_part(file)
    found = find(encoder_file, Known(image_size=image_size))
    fields = {} if image_size is None else {"image_size": image_size}
    plan = Plan(found, change_config(found.config, fields), is_new=True)
    encoder = VisionTransformer(plan.config, dtype=dtype)
    report = plan.load(encoder, found.notes)
    model = dense_predictor(encoder, config, name=name)
    used = [*report.used]
    if encoder_file is not file:
        used = [f"{BACKBONE}{name}" for name in used]
    faults, values = [], []
    for weight in model.weights:
        layer, _, own = weight.path.rpartition("/")
        if layer not in names:
            continue
        raw = f"{names[layer]}.{ARRAYS[own]}"
        if raw not in file.arrays:
            faults.append(f"{raw} is missing")
            continue
        array = _as_ours(file.read(raw), own)
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
        if raw.startswith(("neck.", "head."))
        and raw not in used
        and not re.fullmatch(UNUSED, raw)
    ]
    if faults:
        raise ValueError(f"{file.path} does not fit: {'; '.join(faults)}")
    for weight, array in values:
        weight.assign(array)
    model.load_report = dataclasses.replace(
        report,
        used=tuple(used),
        ignored=tuple(raw for raw in file.arrays if raw not in set(used)),
    )
    return model


def _encoder_part(file):
    """Return the arrays of the encoder, as those of a file of its own."""
    stated = file.json.get("backbone_config")
    if not stated:
        return file
    arrays = {
        name.removeprefix(BACKBONE): array
        for name, array in file.arrays.items()
        if name.startswith(BACKBONE)
    }
    return File(file.path, arrays, dict(stated), file.close, file.notes)


def _as_ours(array, own):
    """Return an array of PyTorch as that of the Keras layer."""
    if own != "kernel":
        return array
    if array.ndim == 2:
        return array.T
    # Also of transposed convolutions, which have inputs and outputs the other
    # way round on both sides.
    return np.transpose(array, (2, 3, 1, 0))


def _read_head(file):
    """Return the configuration of a head, and its layers' names in a file."""
    json = file.json
    kind = json.get("model_type")
    if kind not in ("dpt", "depth_anything"):
        raise ValueError(
            "a model with an answer for each pixel needs the config.json of "
            f"DPT or Depth Anything beside it. Received: model_type={kind!r}"
        )
    backbone = json.get("backbone_config") or {}
    indices = backbone.get("out_indices") or _stages_of(backbone)
    if indices:  # Counted from the patches, which are 0.
        blocks = [index - 1 if index > 0 else index for index in indices]
    else:
        blocks = json.get("backbone_out_indices") or (2, 5, 8, 11)
    refused = {
        "is_hybrid": bool(json.get("is_hybrid")),
        "add_projection": bool(json.get("add_projection")),
        "head_in_index": json.get("head_in_index", -1) != -1,
        "hidden_act": json.get("hidden_act", "gelu") != "gelu",
        "reassemble_factors": tuple(json.get("reassemble_factors", FACTORS))
        != FACTORS,
    }
    for name in (name for name, is_other in refused.items() if is_other):
        raise ValueError(f"there is no such model here: {name}={json[name]!r}")
    is_anything = kind == "depth_anything"
    has_norms = bool(json.get("use_batch_norm_in_fusion_residual"))
    bias = json.get("use_bias_in_fusion_residual")
    is_metric = json.get("depth_estimation_type") == "metric"
    has_classes = "head.head.1.running_mean" in file.arrays
    last = OUTPUTS[kind, "classes" if has_classes else "depth"]
    array = file.arrays.get(f"{last['predictions']}.weight")
    if array is None:
        raise ValueError(f"{last['predictions']}.weight is missing")
    widths = (48, 96, 192, 384) if is_anything else (96, 192, 384, 768)
    config = DenseConfig(
        num_outputs=array.shape[0],
        head="dpt",
        blocks=tuple(blocks),
        use_norm=bool(backbone) and backbone.get("apply_layernorm", True),
        use_batch_norm=has_norms,
        dropout_rate=json.get("semantic_classifier_dropout", 0.1)
        if has_classes
        else 0.0,
        activation=None
        if has_classes
        else ("sigmoid" if is_metric else "relu"),
        # The code of transformers scales relative depths, too.
        output_scale=(json.get("max_depth") or 1.0) if is_anything else 1.0,
        readout="ignore"
        if is_anything
        else json.get("readout_type", "project"),
        stage_widths=tuple(json.get("neck_hidden_sizes", widths)),
        width=json.get("fusion_hidden_size", 64 if is_anything else 256),
        output_width=None if has_classes else array.shape[1],
        use_unit_bias=not has_norms if bias is None else bias,
        has_exact_sizes=is_anything,
    )
    names = dict(last)
    for index in range(len(FACTORS)):
        numbers = {"i": index, "k": len(FACTORS) - 1 - index}
        names |= {
            ours.format(**numbers): theirs.format(**numbers)
            for ours, theirs in STAGE.items()
        }
    return config, names


def _stages_of(backbone):
    """Return the indices of stages that are named, such as `stage12`."""
    found = [
        re.fullmatch(r"stage(\d+)", x)
        for x in backbone.get("out_features") or ()
    ]
    return [int(match[1]) for match in found if match]
