"""Hugging Face transformers: ViTModel and ViTForImageClassification."""

import dataclasses

from keras_vit.models.config import ViTConfig
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import NOTHING, Layout, Spelling
from keras_vit.weights.styles import TORCH
from keras_vit.weights.writers import folder_writer

LAYER = "vit.encoder.layer.{i}."


def make_jsons(config: ViTConfig) -> dict[str, dict]:
    """Return the JSON files beside the weights, by name.

    Args:
        config: Configuration of the model.
    """
    return {
        "config.json": _model_json(config),
        "preprocessor_config.json": _processor_json(config),
    }


def _model_json(config):
    height, width = config.image_size
    head = "ViTForImageClassification" if config.num_classes else "ViTModel"
    model = {
        "architectures": [head],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu"
        if config.activation == "exact"
        else "gelu_pytorch_tanh",
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": config.attention_dropout_rate,
        "initializer_range": 0.02,
        "encoder_stride": config.patch_size,
        "torch_dtype": "float32",
    }
    if config.num_classes:
        labels = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
        model["id2label"] = labels
        model["label2id"] = {label: int(i) for i, label in labels.items()}
    if config.representation_size:
        model["pooler_output_size"] = config.representation_size
        model["pooler_act"] = "tanh"
    return model


def _processor_json(config):
    """Return the preprocessing, which scales pixels to [-1, 1]."""
    height, width = config.image_size
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * config.channels,
        "image_std": [0.5] * config.channels,
    }


def _refuse(config):
    if config.stem_stages is not None:
        return "its ViT has no ResNet stem"
    if not config.use_class_token or config.pooling not in ("token", "none"):
        return "its ViT reads the class token"
    if config.use_pooling_norm:
        return "its last norm comes before the pooling"
    if config.pooling == "none" and config.num_classes:
        return "its classifier returns one output per image"
    if config.representation_size and config.num_classes:
        return (
            "its classifier has no pre-logits layer; without the head, "
            "`model.with_num_classes(0)`, it is written as the pooler"
        )
    return None


def _complete(config, hints, names):
    if config.num_classes:
        # Some files contain a pooler, which the classifier does not read.
        return dataclasses.replace(config, representation_size=None), ()
    activation = hints["pooler_act"]
    if config.representation_size and activation != "tanh":
        raise ValueError(f"its pooler ends in {activation!r}, not in tanh.")
    return config, ()


LAYOUT = Layout(
    order=3,
    title="Hugging Face transformers",
    style=TORCH,
    names={
        "patch_encoder": "vit.embeddings.patch_embeddings.projection",
        "class_token": "vit.embeddings.cls_token",
        "position_embedding": "vit.embeddings.position_embeddings",
        BLOCK + "attention_norm": LAYER + "layernorm_before",
        BLOCK + "attention/qkv": (
            LAYER + "attention.attention.query",
            LAYER + "attention.attention.key",
            LAYER + "attention.attention.value",
        ),
        BLOCK + "attention/out": LAYER + "attention.output.dense",
        BLOCK + "mlp_norm": LAYER + "layernorm_after",
        BLOCK + "mlp/hidden": LAYER + "intermediate.dense",
        BLOCK + "mlp/out": LAYER + "output.dense",
        "encoder_norm": "vit.layernorm",
        "pre_logits": "vit.pooler.dense",
        "predictions": "classifier",
    },
    recognise=(
        "vit.embeddings.patch_embeddings.projection.weight",
        "embeddings.patch_embeddings.projection.weight",
    ),
    layer_norm_epsilon=1e-12,
    wrappers=("module.", "model."),
    # A model without a head has no prefix. Version 5 renamed the modules in
    # memory, so a raw state dict has other names than a saved file.
    aliases=(
        (
            r"^(?=embeddings\.|encoder\.|layers\.|layernorm\.|pooler\.)",
            "vit.",
        ),
        (r"^vit\.layers\.", "vit.encoder.layer."),
        (r"\.attention\.q_proj\.", ".attention.attention.query."),
        (r"\.attention\.k_proj\.", ".attention.attention.key."),
        (r"\.attention\.v_proj\.", ".attention.attention.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    ),
    spellings={"headless": Spelling(((r"^vit\.", ""),))},
    spelling_of=lambda config: "" if config.num_classes else "headless",
    ignore=r"vit\.embeddings\.(mask_token|position_ids)$",
    unread=lambda config: (
        r"vit\.pooler\.dense\." if config.num_classes else NOTHING
    ),
    optional_bias=("heads_in",),
    read_hints=lambda json: {"pooler_act": json.get("pooler_act", "tanh")},
    complete=_complete,
    writers={"": folder_writer(make_jsons)},
    refuse=_refuse,
    said=("activation", "layer_norm_epsilon"),
)
