"""Reading the configurations of Hugging Face's Vision Transformers."""

from keras_vit.weights.huggingface.model_types import MODEL_TYPES, TOWERS
from keras_vit.weights.huggingface.visible_parts import (
    check_expressible,
    expected_fields,
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
    check_expressible(row, json)
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
    return {**found, **row.fields, "expected": expected_fields(row, json)}
