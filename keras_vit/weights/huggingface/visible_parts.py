"""Checks that names and shapes agree with config.json of transformers.

A file without all arrays of a part may look like one of another model, whose
outputs would be wrong.

Source: the model definitions of transformers 5.23.
"""

from typing import Any

from keras_vit.models.config import ViTConfig
from keras_vit.weights.huggingface.model_types import ModelType

# The fields of `vit` that names and shapes show.
VISIBLE_FIELDS = {
    "use_patch_bias": True,
    "norm": "layer",
    "use_patch_norm": False,
    "use_gated_mlp": False,
    "layer_scale_branches": "both",
}


def expected_fields(row: ModelType, json: dict) -> dict[str, Any]:
    """Return fields of ViTConfig that names and shapes must show.

    Args:
        row: The row of the image model in MODEL_TYPES.
        json: Its configuration, with defaults.
    """
    found = {**VISIBLE_FIELDS, **row.expected, **row.expect(json)}
    if json.get("norm_type") == "rms_norm":
        found["norm"] = "rms"
    found["use_gated_mlp"] = bool(
        json.get("use_swiglu_ffn")
        or json.get("use_gated_mlp", found["use_gated_mlp"])
    )
    if row.num_registers is not None:
        count = json.get("num_register_tokens", row.num_registers)
        found["num_registers"] = count
    has_scale = json.get("layer_scale_init_value", json.get("layerscale_value"))
    if has_scale and not row.may_lack_factors:
        found["layer_scale_init"] = "factors"
    return found


def check_expressible(row: ModelType, json: dict):
    """Raise a ValueError if no VisionTransformer computes such a model.

    Args:
        row: The row of the image model in MODEL_TYPES.
        json: Its configuration, with defaults.
    """
    size = json.get("image_size")
    is_rectangle = isinstance(size, list) and len(set(size)) > 1
    if is_rectangle and any(
        json.get(f"use_{table}relative_position_bias")
        for table in ("", "shared_")
    ):
        raise ValueError(
            "its images are not square, and transformers reads its tables of "
            "relative positions with height and width exchanged"
        )
    is_native = "positions computed for each grid (is_native)"
    problems = {
        **row.find_problems(json),
        is_native: bool(json.get("is_native")),
    }
    found = [text for text, holds in problems.items() if holds]
    if found:
        raise ValueError(
            f"its configuration has {', '.join(found)}, which no model of "
            "this package has"
        )


def check_expected(config: ViTConfig, expected: dict[str, Any]):
    """Raise a ValueError if a file contradicts its config.json.

    Args:
        config: The configuration that names and shapes show.
        expected: What `expected_fields` returned.
    """
    for field, value in expected.items():
        actual = getattr(config, field)
        if field == "layer_scale_init" and actual is not None:
            continue  # Only a new model needs the number.
        if actual != value:
            raise ValueError(
                f"its config.json is of a model with {field}={value!r}, but "
                f"its arrays are those of one with {field}={actual!r}"
            )
