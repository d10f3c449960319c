"""Checks that names and shapes agree with config.json of transformers.

A file without all arrays of a part may look like one of another model, whose
outputs would be wrong.

Source: the model definitions of transformers 5.23.
"""

from typing import Any

from keras_vit.models.config import ViTConfig


def expected_fields(kind: str, json: dict) -> dict[str, Any]:
    """Return fields of ViTConfig that names and shapes must show.

    Args:
        kind: The `model_type` of the image model.
        json: Its configuration, with defaults.
    """
    found = {
        "use_patch_bias": kind not in WITHOUT_PATCH_BIAS,
        "norm": "rms" if _has_rms_norms(kind, json) else "layer",
        "use_patch_norm": kind == "aimv2_vision_model",
        "use_gated_mlp": bool(
            json.get("use_swiglu_ffn")
            or json.get("use_gated_mlp", kind in GATED_BY_DEFAULT)
        ),
        "layer_scale_branches": "attention" if kind == "sapiens2" else "both",
    }
    if kind in REGISTERS:
        count = json.get("num_register_tokens", REGISTERS[kind])
        found["num_registers"] = count
    if kind in ("beit", "data2vec-vision"):
        is_shared = bool(json.get("use_shared_relative_position_bias"))
        has_table = is_shared or json.get("use_relative_position_bias")
        found["relative_positions"] = "table" if has_table else "none"
    if kind == "mlcd_vision_model":
        found["rotary_positions"] = "axial_class"
    if kind in ("dinov3_vit", "sapiens2"):
        has_key_bias = json.get("key_bias", kind == "sapiens2")
        has_bias = json.get("query_bias", True)
        found["qkv_bias"] = "query_value" if has_bias else "none"
        if has_key_bias:
            found["qkv_bias"] = "all"
    if kind in ("radio", "tipsv2_vision_model") and json.get("qkv_bias", True):
        found["qkv_bias"] = "all"
    has_scale = json.get("layer_scale_init_value", json.get("layerscale_value"))
    # RADIO's is one, and its files need not have it.
    if has_scale and kind != "radio":
        found["layer_scale_init"] = "factors"
    return found


def _has_rms_norms(kind, json):
    return kind in WITH_RMS_NORMS or json.get("norm_type") == "rms_norm"


def check_expressible(kind: str, json: dict):
    """Raise a ValueError if no VisionTransformer computes such a model.

    Args:
        kind: The `model_type` of the image model.
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
    biases = ("query", "value") if kind == "dinov3_vit" else ()
    has_some_biases = len({json.get(f"{x}_bias", True) for x in biases}) > 1
    problems = {
        "biases of the queries or of the values alone": has_some_biases,
        "biases of the MLP or of the projections alone": (
            kind == "dinov3_vit"
            and json.get("mlp_bias", True) != json.get("proj_bias", True)
        ),
        "biases in the blocks of AIMv2": kind == "aimv2_vision_model"
        and bool(json.get("qkv_bias") or json.get("mlp_bias")),
        "positions computed for each grid (is_native)": bool(
            json.get("is_native")
        ),
        "RMS norms of queries and keys beside layer norms of tokens": (
            kind == "internvl_vision"
            and bool(json.get("use_qk_norm"))
            and not _has_rms_norms(kind, json)
        ),
        "the gated MLP of RADIO": kind == "radio"
        and bool(json.get("use_swiglu_ffn")),
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


WITHOUT_PATCH_BIAS = (
    "clip_vision_model",
    "metaclip_2_vision_model",
    "mlcd_vision_model",
    "radio",
)
WITH_RMS_NORMS = ("aimv2_vision_model", "sapiens2")
GATED_BY_DEFAULT = WITH_RMS_NORMS
# Number of register tokens that a configuration need not state.
REGISTERS = {
    "dinov2_with_registers": 4,
    "dinov3_vit": 0,
    "sapiens2": 8,
    "tipsv2_vision_model": 1,
}
