"""MODEL_TYPES: what config.json of transformers says, by `model_type`.

A file without all arrays of a part may look like one of another model, whose
outputs would be wrong, so `check_expected` compares both.

Source: the model definitions of transformers 5.23.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from keras_vit.models.config import ViTConfig


@dataclasses.dataclass(frozen=True)
class ModelType:
    """A row of MODEL_TYPES.

    Args:
        defaults: The entries of config.json that hold if its file does not
            state them.
        has_class_token: Whether the models have a class token.
        has_timm_names: Whether the arrays have the names of timm, or of code
            that timm reads.
        num_registers: Number of register tokens if config.json does not state
            it; None if the entry is not read.
        may_lack_factors: Whether files may lack the factors of LayerScale
            that config.json states.
        fields: Fields of ViTConfig that all models have. `position_resize` is
            among them unless it is PyTorch's bicubic.
        read: Takes config.json, and whether the class is a classifier. Returns
            the fields of ViTConfig that depend on them. Raises a ValueError if
            no VisionTransformer computes the model.
        expected: Fields of ViTConfig that names and shapes must show, if they
            are not those of `vit`.
        expect: Takes config.json. Returns further such fields.
        find_problems: Takes config.json. Returns what no VisionTransformer
            has, and whether the model has it.
    """

    defaults: dict[str, Any]
    has_class_token: bool = True
    has_timm_names: bool = False
    num_registers: int | None = None
    may_lack_factors: bool = False
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    read: Callable[[dict, bool], dict] = lambda json, is_classifier: {}
    expected: dict[str, Any] = dataclasses.field(default_factory=dict)
    expect: Callable[[dict], dict] = lambda json: {}
    find_problems: Callable[[dict], dict[str, bool]] = lambda json: {}


def _read_dinov2(json, is_classifier):
    return {"pooling": "token_and_avg"} if is_classifier else {}


def _read_clip(json, is_classifier):
    # The classifiers read the patches before the last norm.
    return {
        "pooling": "avg" if is_classifier else "token",
        "use_final_norm": not is_classifier,
    }


def _read_siglip(json, is_classifier):
    if is_classifier:
        return {}
    return {"pooling": "map" if json.get("vision_use_head", True) else "avg"}


def _read_aimv2(json, is_classifier):
    return {"pooling": "probe"} if json.get("use_head", True) else {}


def _read_mlcd(json, is_classifier):
    if json.get("num_key_value_groups", 1) != 1:
        raise ValueError("its configuration has grouped queries")
    parameters = json.get("rope_parameters") or {}
    return {
        "rotary_positions": "axial_class",
        "rotary_temperature": parameters.get("rope_theta", 10_000.0),
    }


def _read_centered(json, is_classifier):
    return {
        "rotary_positions": "centered",
        "rotary_temperature": json["rope_theta"],
    }


def _expect_distances(json):
    is_shared = bool(json.get("use_shared_relative_position_bias"))
    has_table = is_shared or json.get("use_relative_position_bias")
    return {"relative_positions": "table" if has_table else "none"}


def _expect_biases(json, has_key_bias):
    """Return the biases of queries, keys and values; of keys by default."""
    if json.get("key_bias", has_key_bias):
        return {"qkv_bias": "all"}
    has_bias = json.get("query_bias", True)
    return {"qkv_bias": "query_value" if has_bias else "none"}


def _expect_all_biases(json):
    return {"qkv_bias": "all"} if json.get("qkv_bias", True) else {}


def _find_problems_of_dinov3(json):
    one, other = (json.get(f"{x}_bias", True) for x in ("query", "value"))
    mlp, projections = (json.get(f"{x}_bias", True) for x in ("mlp", "proj"))
    return {
        "biases of the queries or of the values alone": one != other,
        "biases of the MLP or of the projections alone": mlp != projections,
    }


def _find_problems_of_aimv2(json):
    has_biases = bool(json.get("qkv_bias") or json.get("mlp_bias"))
    return {"biases in the blocks of AIMv2": has_biases}


def _find_problems_of_internvl(json):
    return {
        "RMS norms of queries and keys beside layer norms of tokens": (
            bool(json.get("use_qk_norm"))
            and json.get("norm_type") != "rms_norm"
        ),
    }


def _find_problems_of_radio(json):
    return {"the gated MLP of RADIO": bool(json.get("use_swiglu_ffn"))}


_COMMON = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
}
_OF_CLIP = {**_COMMON, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_OF_DINOV2 = {**_COMMON, "layer_norm_eps": 1e-6}
_RMS_AND_GATE = {"norm": "rms", "use_gated_mlp": True}
VIT = ModelType(_COMMON)
BEIT = ModelType(
    {**_COMMON, "use_mean_pooling": True}, expect=_expect_distances
)
CLIP = ModelType(_OF_CLIP, read=_read_clip, expected={"use_patch_bias": False})
SIGLIP = ModelType(
    {**_OF_DINOV2, "hidden_act": "gelu_pytorch_tanh"},
    has_class_token=False,
    read=_read_siglip,
)
DINOV2 = ModelType(_OF_DINOV2, read=_read_dinov2)
MODEL_TYPES = {
    "vit": VIT,
    "deit": VIT,
    "vit_mae": VIT,
    "vit_msn": ModelType(_OF_DINOV2),
    "ijepa": dataclasses.replace(VIT, has_class_token=False),
    "dpt": dataclasses.replace(VIT, fields={"position_resize": "bilinear"}),
    "beit": BEIT,
    "data2vec-vision": BEIT,
    "internvl_vision": ModelType(
        {**_OF_DINOV2, "num_attention_heads": 16, "use_mean_pooling": True},
        find_problems=_find_problems_of_internvl,
    ),
    "dinov2": DINOV2,
    "dinov2_with_registers": dataclasses.replace(
        DINOV2,
        num_registers=4,
        fields={"position_resize": "bicubic_antialias"},
    ),
    "dinov3_vit": ModelType(
        {
            **_COMMON,
            "layer_norm_eps": 1e-5,
            "num_attention_heads": 6,
            "rope_theta": 100.0,
        },
        num_registers=0,
        read=_read_centered,
        expect=functools.partial(_expect_biases, has_key_bias=False),
        find_problems=_find_problems_of_dinov3,
    ),
    "clip_vision_model": CLIP,
    "metaclip_2_vision_model": CLIP,
    "mlcd_vision_model": ModelType(
        {**_OF_CLIP, "hidden_act": "gelu", "num_attention_heads": 16},
        read=_read_mlcd,
        expected={"use_patch_bias": False, "rotary_positions": "axial_class"},
    ),
    "siglip_vision_model": SIGLIP,
    "siglip2_vision_model": dataclasses.replace(
        SIGLIP, fields={"position_resize": "bilinear_antialias"}
    ),
    "aimv2_vision_model": ModelType(
        {"hidden_act": "silu", "rms_norm_eps": 1e-5, "num_attention_heads": 8},
        has_class_token=False,
        read=_read_aimv2,
        expected={**_RMS_AND_GATE, "use_patch_norm": True},
        find_problems=_find_problems_of_aimv2,
    ),
    "tipsv2_vision_model": ModelType(
        _OF_DINOV2,
        has_timm_names=True,
        num_registers=1,
        fields={"position_resize": "bilinear_antialias"},
        expect=_expect_all_biases,
    ),
    "sapiens2": ModelType(
        {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "num_attention_heads": 16,
            "rope_theta": 100.0,
        },
        has_timm_names=True,
        num_registers=8,
        fields={"layer_scale_branches": "attention"},
        read=_read_centered,
        expected={**_RMS_AND_GATE, "layer_scale_branches": "attention"},
        expect=functools.partial(_expect_biases, has_key_bias=True),
    ),
    "radio": ModelType(
        {**_OF_DINOV2, "num_attention_heads": 16},
        has_timm_names=True,
        may_lack_factors=True,
        fields={
            "position_resize": "bilinear_square",
            "pooling": "prefix",
            "use_final_norm": False,
            "use_patch_bias": False,
        },
        expected={"use_patch_bias": False},
        expect=_expect_all_biases,
        find_problems=_find_problems_of_radio,
    ),
    "timm_wrapper": ModelType({}),
}
# Models of text and images -> the model_type of the image tower.
TOWERS = {
    "clip": "clip_vision_model",
    "metaclip_2": "metaclip_2_vision_model",
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
    "aimv2": "aimv2_vision_model",
    "internvl": "internvl_vision",
    "tipsv2": "tipsv2_vision_model",
}
# Model types whose arrays have the names of timm, or of code that timm reads.
IN_TIMM_NAMES = tuple(
    name
    for name in (*MODEL_TYPES, *TOWERS)
    if MODEL_TYPES[TOWERS.get(name, name)].has_timm_names
)


def describe_tower(json: dict) -> dict:
    """Return the configuration of the image model, with its defaults.

    Args:
        json: The content of config.json; {} without one.

    Raises:
        ValueError: If its model_type is not one of these.
    """
    if "model_type" not in json:
        return json
    outer, tower = json["model_type"], json.get("vision_config")
    kind = outer
    if isinstance(tower, dict) or outer in TOWERS:
        tower = tower if isinstance(tower, dict) else {}
        kind = tower.get("model_type", TOWERS.get(outer))
    else:
        tower = json
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"its configuration has model_type={kind!r}, which is not a "
            f"Vision Transformer of {', '.join(MODEL_TYPES)}"
        )
    # The gate of DINOv2 is always SiLU.
    gate = {"hidden_act": "silu"} if tower.get("use_swiglu_ffn") else {}
    return {
        **MODEL_TYPES[kind].defaults,
        **tower,
        **gate,
        "model_type": kind,
        "architectures": json.get("architectures"),
        "stated_classes": _count_classes(json),
    }


def _count_classes(json):
    """Return the number of outputs of the head that a class has, or None."""
    names = json.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith(("ImageClassification", "ClassificationWithTeacher")):
        labels = json.get("id2label")
        usual = len(labels) if isinstance(labels, dict) else 2
        return json.get("num_labels", usual)
    if name.endswith("WithProjection") or name == "CLIPModel":
        return json.get("projection_dim", 512)
    return None


def read_settings(json: dict) -> dict:
    """Return the fields of ViTConfig that a class of transformers implies.

    Args:
        json: A configuration that `describe_tower` returned.

    Raises:
        ValueError: If no VisionTransformer computes what it states.
    """
    kind = json.get("model_type")
    if kind is None:
        return {}
    row = MODEL_TYPES[kind]
    names = json.get("architectures")
    names = names if isinstance(names, list) and names else [""]
    architecture = str(names[0])
    _check_expressible(row, json)
    found = {
        "architecture": architecture,
        "stated_classes": json["stated_classes"],
        "rotary_positions": "none",
        "norm_placement": "before",
        "pooling": "token" if row.has_class_token else "avg",
        **row.read(json, architecture.endswith("ForImageClassification")),
    }
    if "num_hidden_layers" in json:
        found["depth"] = json["num_hidden_layers"]
    if "use_mean_pooling" in json:
        means = json["use_mean_pooling"]
        found["pooling"] = "avg" if means else "token"
        found["use_final_norm"] = not means
        if not json.get("use_absolute_position_embeddings"):
            found["position_embedding"] = "none"
    elif architecture == "DeiTForImageClassificationWithTeacher":
        found["pooling"] = "distilled"
    return {**found, **row.fields, "expected": _expected_fields(row, json)}


# The fields of `vit` that names and shapes show.
VISIBLE_FIELDS = {
    "use_patch_bias": True,
    "norm": "layer",
    "use_patch_norm": False,
    "use_gated_mlp": False,
    "layer_scale_branches": "both",
}


def _expected_fields(row, json) -> dict[str, Any]:
    """Return fields of ViTConfig that names and shapes must show."""
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


def _check_expressible(row, json):
    """Raise a ValueError if no VisionTransformer computes such a model."""
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
        expected: What `read_settings` returned.
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
