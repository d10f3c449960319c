"""Models with an answer for each pixel in transformers: names and config.json.

Source: the definitions of DPT and Depth Anything in transformers 5.24.
"""

import dataclasses
import re

import numpy as np

from keras_vit.models.config import ViTConfig
from keras_vit.models.dense import FACTORS, DenseConfig
from keras_vit.weights.containers import File
from keras_vit.weights.families.family import (
    Dialect,
    Written,
    find_class_names,
)
from keras_vit.weights.families.huggingface import (
    VIT_NAMES,
    dense_processor_json,
)

DENSE_TYPES = ("dpt", "depth_anything")  # Values of `model_type`.
# Prefixes of the names of encoders: of DPT's own, and of others.
OWN, BACKBONE = "dpt.", "backbone."
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
FIRST_UNIT = "neck.fusion_stage.layers.0."
UNUSED = (
    rf"{re.escape(FIRST_UNIT)}residual_layer1\..*|auxiliary_head\..*"
    r"|.*\.num_batches_tracked"
)
# Fields of DenseConfig that change no outputs.
UNSTORED = ("dropout_rate",)


def names_of_layers(kind: str, has_classes: bool) -> dict[str, str]:
    """Return the names in transformers of the layers that heads can have."""
    names = dict(OUTPUTS[kind, "classes" if has_classes else "depth"])
    for index in range(len(FACTORS)):
        numbers = {"i": index, "k": len(FACTORS) - 1 - index}
        names |= {
            ours.format(**numbers): theirs.format(**numbers)
            for ours, theirs in STAGE.items()
        }
    return names


def name_of(path: str, layers: dict[str, str]) -> str | None:
    """Return the name in transformers of a weight, None if not of a head."""
    layer, _, own = path.rpartition("/")
    # A factor of LoRA has no name: it is part of the kernel.
    is_known = layer in layers and own in ARRAYS
    return f"{layers[layer]}.{ARRAYS[own]}" if is_known else None


def to_ours(array: np.ndarray) -> np.ndarray:
    """Return an array of PyTorch as that of the Keras layer."""
    # Also of transposed convolutions, which have inputs and outputs the other
    # way round on both sides.
    return np.transpose(array, (2, 3, 1, 0) if array.ndim == 4 else None)


def to_file(array: np.ndarray) -> np.ndarray:
    """Return an array of a Keras layer as that of PyTorch."""
    return np.transpose(array, (3, 2, 0, 1) if array.ndim == 4 else None)


def read_head(
    json: dict, shapes: dict[str, tuple]
) -> tuple[DenseConfig, dict[str, str]]:
    """Return the configuration of a head, and the names of its layers.

    Raises:
        ValueError: If it is of another model.
    """
    kind = json.get("model_type")
    if kind not in DENSE_TYPES:
        raise ValueError(
            "a model with an answer for each pixel needs the config.json of "
            f"DPT or Depth Anything beside it. Received: model_type={kind!r}"
        )
    backbone = json.get("backbone_config") or {}
    indices = backbone.get("out_indices")
    indices = _stages_of(backbone) if indices is None else indices
    if 0 in indices:
        raise ValueError(
            "its head reads the patches before the first block, the stage "
            f"'stem' of `backbone_config`: out_indices={indices}"
        )
    if indices:  # Counted from the patches, which are 0.
        blocks = [index - 1 if index > 0 else index for index in indices]
    else:  # In the order of the blocks, whatever theirs is.
        blocks = sorted(json.get("backbone_out_indices") or (2, 5, 8, 11))
    is_anything = kind == "depth_anything"
    readout = json.get("readout_type", "project")
    has_gelu = json.get("hidden_act", "gelu") == "gelu"
    refused = {
        "is_hybrid": bool(json.get("is_hybrid")),
        "add_projection": bool(json.get("add_projection")),
        "readout_type": readout not in ("ignore", "add", "project"),
        "head_in_index": json.get("head_in_index", -1) != -1,
        # Of the readout; that of the blocks is the encoder's.
        "hidden_act": readout == "project" and not has_gelu,
        "reassemble_factors": tuple(json.get("reassemble_factors", FACTORS))
        != FACTORS,
    }
    for name in (name for name, is_other in refused.items() if is_other):
        raise ValueError(f"there is no such model here: {name}={json[name]!r}")
    has_norms = bool(json.get("use_batch_norm_in_fusion_residual"))
    bias = json.get("use_bias_in_fusion_residual")
    is_metric = json.get("depth_estimation_type") == "metric"
    has_classes = "head.head.1.running_mean" in shapes
    layers = names_of_layers(kind, has_classes)
    last = f"{layers['predictions']}.weight"
    if last not in shapes:
        raise ValueError(f"{last} is missing")
    num_outputs, output_width = shapes[last][:2]
    if not has_classes and num_outputs != 1:
        raise ValueError(
            f"a depth is one number for each pixel, and {last} has "
            f"{num_outputs} outputs"
        )
    if not has_classes and not is_anything and output_width != 32:
        raise ValueError(
            f"a depth of DPT is made from 32 numbers, and {last} has "
            f"{output_width} inputs"
        )
    widths = (48, 96, 192, 384) if is_anything else (96, 192, 384, 768)
    names = find_class_names(json, num_outputs) if has_classes else None
    config = DenseConfig(
        num_outputs=num_outputs,
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
        class_names=names,
        readout="ignore" if is_anything else readout,
        stage_widths=tuple(json.get("neck_hidden_sizes", widths)),
        width=json.get("fusion_hidden_size", 64 if is_anything else 256),
        output_width=None if has_classes else output_width,
        use_unit_bias=not has_norms if bias is None else bias,
        has_exact_sizes=is_anything,
    )
    return config, layers


def _stages_of(backbone):
    """Return the indices of stages that are named, such as `stage12`."""
    names = [str(name) for name in backbone.get("out_features") or ()]
    found = [re.fullmatch(r"stem|stage(\d+)", name) for name in names]
    return [int(match[1] or 0) for match in found if match]


def write_head(
    written: Written,
    config: ViTConfig,
    head: DenseConfig,
    weights: dict[str, tuple],
) -> tuple[Written, dict[str, str], dict[str, tuple]]:
    """Return what is written of a model with an answer for each pixel.

    Args:
        written: What is written of its encoder alone.
        config: The configuration of the model.
        head: That of its head.
        weights: The shapes of the weights of the model, by path.

    Returns:
        What is written of the whole; the name of each weight of the head; and
        the shapes of arrays of zeros, by name.

    Raises:
        ValueError: If transformers has no such model.
    """
    encoder = written.files["config.json"]
    if head.head != "dpt":
        raise ValueError(f"it has no head like this: head={head.head!r}")
    has_classes, kind = head.output_width is None, encoder["model_type"]
    encoders = {"vit": "ViT"} | ({} if has_classes else {"dinov2": "DINOv2"})
    if kind not in encoders:
        raise ValueError(
            f"its heads for {'classes' if has_classes else 'depths'} read "
            f"encoders like {' or '.join(encoders.values())}, and not {kind!r}"
        )
    is_own = kind == "vit"
    height, width = config.image_size
    if is_own and height != width:
        raise ValueError(
            "the code of DPT computes square images alone, and the model has "
            f"image_size={config.image_size}"
        )
    is_anything = not (has_classes or is_own) and head.has_exact_sizes
    found = {
        "neck_hidden_sizes": list(head.stage_widths),
        "reassemble_factors": list(FACTORS),
        "fusion_hidden_size": head.width,
        "head_in_index": -1,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
    }
    if is_anything:
        if head.output_scale % 1:
            raise ValueError(
                "its `max_depth` is a whole number, and the model has "
                f"output_scale={head.output_scale}"
            )
        is_metric = head.activation == "sigmoid"
        found |= {
            "architectures": ["DepthAnythingForDepthEstimation"],
            "model_type": "depth_anything",
            "patch_size": config.patch_size,
            "reassemble_hidden_size": config.width,
            "head_hidden_size": head.output_width,
            "depth_estimation_type": "metric" if is_metric else "relative",
            "max_depth": int(head.output_scale),
        }
    else:
        task = "SemanticSegmentation" if has_classes else "DepthEstimation"
        found |= {
            "architectures": [f"DPTFor{task}"],
            "model_type": "dpt",
            "is_hybrid": False,
            "add_projection": False,
            "readout_type": head.readout,
            "use_batch_norm_in_fusion_residual": head.use_batch_norm,
            "use_bias_in_fusion_residual": head.use_unit_bias,
            "use_auxiliary_head": False,
            "semantic_classifier_dropout": head.dropout_rate,
        }
    if is_own:
        found |= {"backbone_out_indices": list(head.blocks)}
        found = {**encoder, **found}
    else:
        stages = [index + 1 for index in head.blocks]
        found["backbone_out_indices"] = None
        found["backbone_config"] = {
            **encoder,
            "architectures": ["Dinov2Backbone"],
            "out_indices": stages,
            "out_features": [f"stage{index}" for index in stages],
            "apply_layernorm": config.use_final_norm,
            "reshape_hidden_states": False,
        }
    if has_classes:
        names = head.class_names
        names = names or [f"LABEL_{i}" for i in range(head.num_outputs)]
        found |= VIT_NAMES.class_entries(names)

    layers = names_of_layers(found["model_type"], has_classes)
    names = {path: name_of(path, layers) for path in weights}
    names = {path: name for path, name in names.items() if name}
    shapes = {
        name: to_file(np.broadcast_to(np.float32(0), weights[path])).shape
        for path, name in names.items()
    }
    # The branch that is not used has the shapes of the one that is.
    zeros = {
        name.replace("layer2", "layer1"): shape
        for name, shape in shapes.items()
        if name.startswith(f"{FIRST_UNIT}residual_layer2.")
    }
    zeros |= {
        name.replace("running_mean", "num_batches_tracked"): ()
        for name in (*shapes, *zeros)
        if name.endswith(".running_mean")
    }
    _check_readable(found, shapes, config, head)
    prefix = OWN if is_own else BACKBONE
    changes = (*written.dialect.changes, (r"^", prefix))
    written = written._replace(
        files={
            "config.json": found,
            "preprocessor_config.json": dense_processor_json(config),
        },
        dialect=Dialect(changes),
        notes=_differences(config),
    )
    return written, names, zeros


def _differences(config):
    """Yield a note on an image processor that differs."""
    settings = config.preprocessing
    if settings.resize_mode != "squash" or settings.crop_fraction != 1:
        height, width = config.image_size
        yield (
            "this model reads the middle of a photo, but the image processor "
            f"of DPT resizes the whole photo to {height}x{width} pixels"
        )


def _check_readable(json, shapes, config, head):
    """Raise a ValueError if readers would compute another head."""
    theirs, _ = read_head(json, shapes)
    head = dataclasses.replace(head, use_norm=config.use_final_norm)
    has_pixels = head.output_width is None or config.patch_size == 16
    if (
        has_pixels
        and not config.use_dynamic_image_size
        and not any(side % 2 for side in config.grid_size)
    ):
        # Twice the size of a map is then that of the next one.
        exact = theirs.has_exact_sizes
        head = dataclasses.replace(head, has_exact_sizes=exact)
    different = [
        f"{field}={value!r}, which would be read as {getattr(theirs, field)!r}"
        for field, value in dataclasses.asdict(head).items()
        if value != getattr(theirs, field) and field not in UNSTORED
    ]
    if different:
        raise ValueError(f"the model has {'; '.join(different)}")


def encoder_part(file: File) -> File:
    """Return the arrays of the encoder, as those of a file of its own.

    Of another file than that of DPT or Depth Anything, these are all.
    """
    is_dense = file.json.get("model_type") in DENSE_TYPES
    stated = is_dense and file.json.get("backbone_config")
    if not stated:
        return file
    arrays = {
        name.removeprefix(BACKBONE): array
        for name, array in file.arrays.items()
        if name.startswith(BACKBONE)
    }
    return File(file.path, arrays, dict(stated), file.close, file.notes)
