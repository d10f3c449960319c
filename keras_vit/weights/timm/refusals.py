"""Why timm cannot compute a model: `explain_refusal`."""

from keras_vit.models.config import ViTConfig
from keras_vit.weights.timm.class_arguments import (
    ROPE_TYPES,
    beit_arguments,
    distilled_arguments,
    eva_arguments,
    relative_arguments,
    vision_transformer_arguments,
)
from keras_vit.weights.timm.config_json import PACKED, POOLS, find_base


def explain_refusal(config: ViTConfig) -> str | None:
    """Return why no class of timm computes a model, or None.

    Args:
        config: Configuration of the model.
    """
    reasons = {
        **_problems_of_positions(config),
        **_problems_of_blocks(config),
        **_problems_of_pooling(config),
    }
    return next((text for text, holds in reasons.items() if holds), None)


def _problems_of_positions(config):
    relative, rotary = config.relative_positions, config.rotary_positions
    return {
        f"it has no rotary positions {rotary!r}": (
            rotary not in ("none", *ROPE_TYPES)
        ),
        "its relative positions stand alone": relative != "none"
        and (rotary != "none" or config.position_embedding != "none"),
        "its relative positions from a table come with biases of queries and "
        "values, or none": relative == "table" and config.qkv_bias == "all",
    }


def _problems_of_blocks(config):
    is_rms, is_gated = config.norm == "rms", config.use_gated_mlp
    return {
        "its norms of queries and keys are those of each head": (
            config.qk_norm == "width"
        ),
        "its gates are SiLU": is_gated and config.activation != "silu",
        "its class of this model computes the exact GELU": (
            not is_gated
            and config.activation != "exact"
            and find_base(config).arguments
            not in (vision_transformer_arguments, distilled_arguments)
        ),
        "a norm of the patches comes with RMS norms and a gated MLP": (
            config.use_patch_norm and not (is_rms and is_gated)
        ),
        "RMS norms and a gated MLP come with a norm of the patches": (
            is_rms
            and is_gated
            and not config.use_patch_norm
            and config.rotary_positions == "none"
        ),
        "its blocks with norms after the branches have no others": (
            config.norm_placement == "after"
            and (
                config.layer_scale_init is not None or config.qk_norm != "none"
            )
        ),
        "only its models with a norm before the first block lack the bias of "
        "the patches": config.use_patch_bias == config.use_embedding_norm,
    }


def _problems_of_pooling(config):
    pooling, base = config.pooling, find_base(config)
    is_beit = base.arguments is beit_arguments
    has_map = pooling.startswith("map")
    return {
        "it has no pre-logits layer": config.representation_size,
        f"it has no pooling {pooling!r}": pooling not in POOLS,
        "its class with a distillation token has two classifiers": (
            config.use_distillation_token and pooling != "distilled"
        ),
        "its attention pooling has layer norms": (
            config.norm == "rms" and has_map
        ),
        "its class of this model has no attention pooling": has_map
        and (is_beit or base.arguments is relative_arguments),
        "its BEiT has a class token": is_beit and not config.use_class_token,
        "its attention pooling has GELU, or packs its gates as well": (
            config.use_gated_mlp
            and has_map
            and (base.arguments is eva_arguments or base.architecture == PACKED)
        ),
    }
