"""Reading the configurations of Hugging Face's Vision Transformers.

Source: the model definitions of transformers 5.23.
"""

from keras_vit.weights.huggingface.visible_parts import (
    check_expressible,
    expected_fields,
)

# For each model_type, the fields of ViTConfig and the entries of config.json
# that hold if its file does not state them.
COMMON = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
}
CLIP = {**COMMON, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
SIGLIP = {**COMMON, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
DINOV2 = {**COMMON, "layer_norm_eps": 1e-6}
BEIT = {**COMMON, "use_mean_pooling": True}
MODEL_TYPES = {
    "vit": COMMON,
    "deit": COMMON,
    "vit_mae": COMMON,
    "vit_msn": DINOV2,
    "ijepa": COMMON,
    "dpt": COMMON,
    "beit": BEIT,
    "data2vec-vision": BEIT,
    "internvl_vision": {
        **DINOV2,
        "num_attention_heads": 16,
        "use_mean_pooling": True,
    },
    "dinov2": DINOV2,
    "dinov2_with_registers": DINOV2,
    "dinov3_vit": {
        **COMMON,
        "layer_norm_eps": 1e-5,
        "num_attention_heads": 6,
        "rope_theta": 100.0,
    },
    "clip_vision_model": CLIP,
    "metaclip_2_vision_model": CLIP,
    "mlcd_vision_model": {
        **CLIP,
        "hidden_act": "gelu",
        "num_attention_heads": 16,
    },
    "siglip_vision_model": SIGLIP,
    "siglip2_vision_model": SIGLIP,
    "aimv2_vision_model": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "num_attention_heads": 8,
    },
    "tipsv2_vision_model": DINOV2,
    "sapiens2": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "num_attention_heads": 16,
        "rope_theta": 100.0,
    },
    "radio": {**DINOV2, "num_attention_heads": 16},
    "timm_wrapper": {},
}
# Model types whose arrays have the names of timm, or of code that timm reads.
IN_TIMM_NAMES = ("tipsv2", "tipsv2_vision_model", "sapiens2", "radio")
# How positions are resized, where it is not PyTorch's bicubic.
POSITION_RESIZES = {
    "dinov2_with_registers": "bicubic_antialias",
    "siglip2_vision_model": "bilinear_antialias",
    "radio": "bilinear_square",
    "tipsv2_vision_model": "bilinear_antialias",
    "dpt": "bilinear",
}
# Further fields of ViTConfig that all models of a type have.
FURTHER_FIELDS = {
    "radio": {
        "pooling": "prefix",
        "use_final_norm": False,
        "use_patch_bias": False,
    },
    "sapiens2": {"layer_scale_branches": "attention"},
}
WITHOUT_CLASS_TOKEN = (
    "ijepa",
    "siglip_vision_model",
    "siglip2_vision_model",
    "aimv2_vision_model",
)
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
        **MODEL_TYPES[kind],
        **tower,
        **gate,
        "model_type": kind,
        "architectures": json.get("architectures"),
    }


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
    names = json.get("architectures")
    names = names if isinstance(names, list) and names else [""]
    architecture = str(names[0])
    is_classifier = architecture.endswith("ForImageClassification")
    found = {
        "architecture": architecture,
        "rotary_positions": "none",
        "norm_placement": "before",
        "pooling": "avg" if kind in WITHOUT_CLASS_TOKEN else "token",
    }
    if "num_hidden_layers" in json:
        found["depth"] = json["num_hidden_layers"]
    check_expressible(kind, json)
    if "use_mean_pooling" in json:
        means = json["use_mean_pooling"]
        found["pooling"] = "avg" if means else "token"
        found["use_final_norm"] = not means
        if not json.get("use_absolute_position_embeddings"):
            found["position_embedding"] = "none"
    elif architecture == "DeiTForImageClassificationWithTeacher":
        found["pooling"] = "distilled"
    elif kind.startswith("dinov2") and is_classifier:
        found["pooling"] = "token_and_avg"
    elif kind in ("clip_vision_model", "metaclip_2_vision_model"):
        # Their classifiers read the patches before the last norm.
        found["pooling"] = "avg" if is_classifier else "token"
        found["use_final_norm"] = not is_classifier
    elif kind.startswith("siglip") and not is_classifier:
        found["pooling"] = "map" if json.get("vision_use_head", True) else "avg"
    elif kind == "aimv2_vision_model" and json.get("use_head", True):
        found["pooling"] = "probe"
    if kind in POSITION_RESIZES:
        found["position_resize"] = POSITION_RESIZES[kind]
    found |= FURTHER_FIELDS.get(kind, {})
    found["expected"] = expected_fields(kind, json)
    return {**found, **_read_rotary_positions(kind, json)}


def _read_rotary_positions(kind, json):
    """Return the fields of rotary positions, {} without them."""
    if kind == "mlcd_vision_model":
        if json.get("num_key_value_groups", 1) != 1:
            raise ValueError("its configuration has grouped queries")
        parameters = json.get("rope_parameters") or {}
        return {
            "rotary_positions": "axial_class",
            "rotary_temperature": parameters.get("rope_theta", 10_000.0),
        }
    if kind in ("dinov3_vit", "sapiens2"):
        return {
            "rotary_positions": "centered",
            "rotary_temperature": json["rope_theta"],
        }
    return {}
