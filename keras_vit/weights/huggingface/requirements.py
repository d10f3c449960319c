"""The requirements of each family of classes in transformers.

Each function returns the requirements of a family as sentences, and whether a
model violates each of them.
"""

from keras_vit.models.config import ViTConfig
from keras_vit.weights.huggingface.descriptions import dinov2_ratio

HIDDEN_ACTS = {
    "exact": "gelu",
    "tanh": "gelu_pytorch_tanh",
    "quick": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
}
# The table rows that the classes of transformers can express, by field.
TRANSFORMERS_VALUES = {
    "activation": HIDDEN_ACTS,
    "pooling": ("distilled", "token_and_avg", "probe"),
    "rotary_positions": ("centered",),
    "relative_positions": ("table",),
    "norm": ("rms",),
    "qkv_bias": ("query_value", "none"),
}


def problems_of_vit(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of vit; True if violated.

    Args:
        config: Configuration of the model.
    """
    return {
        "its ViT reads the class token": not config.use_class_token
        or config.pooling not in ("token", "none"),
        "its pooler reads the class token": bool(
            config.representation_size and config.pooling == "none"
        ),
        **_no_pre_logits_with_head(config),
        **_norm_before_pooling(config),
    }


def _no_pre_logits_with_head(config):
    return {
        "its classifier has no pre-logits layer (remove the head with "
        "`model.with_num_classes(0)`, and it is written as the pooler)": bool(
            config.representation_size and config.num_classes
        )
    }


def _norm_before_pooling(config):
    return {"its last norm comes before the pooling": config.use_pooling_norm}


def _no_pooler(config):
    return {"it has no pre-logits layer": bool(config.representation_size)}


def problems_of_deit(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of deit; True if violated.

    Args:
        config: Configuration of the model.
    """
    pooling = config.pooling
    return {
        **_no_pre_logits_with_head(config),
        **_norm_before_pooling(config),
        "its DeiT reads the class token, or both tokens with two classifiers": (
            pooling not in ("token", "none", "distilled")
            or (pooling == "distilled" and not config.num_classes)
        ),
    }


def problems_of_ijepa(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of ijepa; True if violated.

    Args:
        config: Configuration of the model.
    """
    return {
        "its models without a class token average the patches": config.pooling
        not in ("avg", "none"),
        **_norm_before_pooling(config),
        **_no_pooler(config),
    }


def problems_of_dinov2(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of dinov2; True if violated.

    Args:
        config: Configuration of the model.
    """
    pooling = "token_and_avg" if config.num_classes else "token"
    return {
        f"its DINOv2 has `pooling={pooling!r}` "
        f"{'with' if config.num_classes else 'without'} a classifier": (
            config.pooling != pooling
        ),
        "its DINOv2 has a class token": not config.use_class_token,
        "its register tokens have no positions": bool(
            config.num_registers and config.use_prefix_positions
        ),
        "its gates are SiLU": config.use_gated_mlp
        and config.activation != "silu",
        "its MLP has a whole `mlp_ratio`": dinov2_ratio(config) is None,
        **_norm_before_pooling(config),
        **_no_pooler(config),
    }


def problems_of_dinov3(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of dinov3; True if violated.

    Args:
        config: Configuration of the model.
    """
    return {
        "its DINOv3 has a class token": not config.use_class_token,
        "its DINOv3 pools by the class token": config.pooling
        not in ("token", "none"),
        "its DINOv3 has LayerScale": config.layer_scale_init is None,
        "its DINOv3 has no position table": (
            config.position_embedding != "none"
        ),
        **_norm_before_pooling(config),
        **_no_pooler(config),
    }


def problems_of_beit(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of beit; True if violated.

    Args:
        config: Configuration of the model.
    """
    averages = config.pooling == "avg"
    return {
        "its BEiT has a class token": not config.use_class_token,
        "its BEiT averages the patches, or reads the class token": (
            config.pooling not in ("avg", "token")
        ),
        "its BEiT normalises the average, or else before the pooling": (
            averages != config.use_pooling_norm
        ),
        "its BEiT has biases of queries and values": (
            config.qkv_bias != "query_value"
        ),
        "its BEiT has LayerScale": config.layer_scale_init is None,
        **_no_pooler(config),
    }


def problems_of_clip(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of clip; True if violated.

    Args:
        config: Configuration of the model.
    """
    return {
        "its CLIP has a class token": not config.use_class_token,
        # Its tokens are those before the last norm.
        "its CLIP pools by the class token": config.pooling != "token",
        "its CLIP has no bias of the patches": config.use_patch_bias,
        **_norm_before_pooling(config),
        **_no_pooler(config),
    }


def problems_of_siglip(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of siglip; True if violated.

    Args:
        config: Configuration of the model.
    """
    return {
        "its SigLIP pools with the heads and the MLP of a block": bool(
            config.pooling_heads or config.pooling_mlp_dim
        ),
        **_no_pooler(config),
    }


def problems_of_aimv2(config: ViTConfig) -> dict[str, bool]:
    """Return the requirements of the classes of aimv2; True if violated.

    Args:
        config: Configuration of the model.
    """
    return {
        "its AIMv2 has a gated MLP and a norm of the patches": not (
            config.use_gated_mlp and config.use_patch_norm
        ),
        "its AIMv2 has no biases in blocks": config.use_block_bias
        or config.qkv_bias != "none",
        "its AIMv2 has no class token": config.use_class_token,
        "its AIMv2 pools by a probe": config.pooling
        not in ("probe", "avg", "none"),
        **_norm_before_pooling(config),
        **_no_pooler(config),
    }
