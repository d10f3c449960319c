"""The arguments of timm's classes for a ViTConfig."""

import math

from keras_vit.models.config import ViTConfig

ROPE_TYPES = {"axial": "cat", "mixed": "mixed", "centered": "dinov3"}
ACT_LAYERS = {
    "exact": "gelu",
    "tanh": "gelu_tanh",
    "quick": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
    "elu": "elu",
}
# The defaults of VisionTransformer.
CLASS_DEFAULTS = {
    "reg_tokens": 0,
    "no_embed_class": False,
    "pre_norm": False,
    "final_norm": True,
    "qkv_bias": True,
    "proj_bias": True,
    "qk_norm": False,
    "scale_attn_norm": False,
    "scale_mlp_norm": False,
    "init_values": None,
    "pool_include_prefix": False,
}


def is_eva(config: ViTConfig) -> bool:
    """Return whether timm's class is Eva.

    Args:
        config: Configuration of the model.
    """
    has_bias = config.qkv_bias == "query_value"
    is_table = config.relative_positions == "table"
    return config.rotary_positions != "none" or (has_bias and not is_table)


def is_sapiens(config: ViTConfig) -> bool:
    """Return whether timm's class is Eva with the norms of Sapiens 2.

    Args:
        config: Configuration of the model.
    """
    return is_eva(config) and config.norm == "rms"


def has_split_projections(config: ViTConfig) -> bool:
    """Return whether timm's queries, keys and values have arrays of their own.

    Args:
        config: Configuration of the model.
    """
    return is_eva(config) and (
        is_sapiens(config)
        or (config.use_gated_mlp and config.use_mlp_inner_norm)
    )


def has_split_gate(config: ViTConfig) -> bool:
    """Return whether timm's gate has an array of its own.

    Args:
        config: Configuration of the model.
    """
    if is_sapiens(config):
        return config.use_gated_mlp and config.use_mlp_inner_norm
    return config.use_gated_mlp and (
        config.norm == "rms"
        or (config.use_mlp_inner_norm and is_eva(config))
        or config.rotary_positions.startswith("centered")
    )


def ratio_of(mlp_dim: int, width: int) -> float:
    """Return a ratio for which timm's int(width * ratio) is `mlp_dim`.

    Args:
        mlp_dim: Hidden size of the MLP.
        width: Size of a token.
    """
    ratio = mlp_dim / width
    exact = int(width * ratio) == mlp_dim
    return ratio if exact else math.nextafter(ratio, math.inf)


def _init_values(config):
    """Return LayerScale's initial value, which timm leaves out if it is 0."""
    has_scale = config.layer_scale_init is not None
    return (config.layer_scale_init or 1e-5) if has_scale else None


def vision_transformer_arguments(config: ViTConfig) -> dict:
    """Return the arguments of VisionTransformer, beside the common ones.

    Args:
        config: Configuration of the model.
    """
    has_token = config.use_class_token or config.num_registers
    arguments = {
        "class_token": config.use_class_token,
        "fc_norm": config.use_pooling_norm,
        "act_layer": ACT_LAYERS[config.activation],
    }
    later = {
        "reg_tokens": config.num_registers,
        "no_embed_class": not config.use_prefix_positions,
        "pre_norm": config.use_embedding_norm,
        "final_norm": config.use_final_norm,
        "qkv_bias": config.qkv_bias == "all",
        "proj_bias": config.use_block_bias,
        "qk_norm": config.qk_norm == "head",
        "scale_attn_norm": config.use_attention_inner_norm,
        "scale_mlp_norm": config.use_mlp_inner_norm,
        "init_values": _init_values(config),
        "pool_include_prefix": bool(has_token and config.pooling == "map"),
    }
    return {**arguments, **later}


def _rotary_arguments(config):
    kind = config.rotary_positions
    reference = config.rotary_reference_size
    # Only axial positions have a choice of axes here.
    is_xy = kind == "mixed" or (kind == "axial" and config.rotary_axes == "xy")
    arguments = {
        "rope_type": ROPE_TYPES[kind],
        "rope_temperature": config.rotary_temperature,
        "rope_grid_indexing": "xy" if is_xy else "ij",
        "rope_rotate_half": kind == "centered",
        "ref_feat_shape": reference and list(reference),
    }
    if kind != "centered":
        arguments["rope_grid_offset"] = config.rotary_offset
    return arguments


def eva_arguments(config: ViTConfig) -> dict:
    """Return the arguments of Eva, beside the common ones.

    Args:
        config: Configuration of the model.
    """
    is_rotary = config.rotary_positions != "none"
    arguments = {
        "class_token": config.use_class_token,
        "num_reg_tokens": config.num_registers,
        "no_embed_class": not config.use_prefix_positions,
        "use_abs_pos_emb": config.position_embedding != "none",
        "use_rot_pos_emb": is_rotary,
        "attn_type": "rope" if config.qkv_bias == "all" else "eva",
        "qkv_bias": config.qkv_bias != "none",
        "qkv_fused": not has_split_projections(config),
        "qk_norm": config.qk_norm == "head",
        "swiglu_mlp": config.use_gated_mlp,
        "swiglu_align_to": int(has_split_gate(config)),
        "scale_mlp": config.use_mlp_inner_norm,
        "scale_attn_inner": config.use_attention_inner_norm,
        "init_values": _init_values(config),
        "attn_only_layer_scale": config.layer_scale_branches == "attention",
        "use_post_norm": config.norm_placement == "after",
        "use_pre_transformer_norm": config.use_embedding_norm,
        "use_post_transformer_norm": config.use_final_norm
        and not config.use_pooling_norm,
        "use_fc_norm": config.use_final_norm and config.use_pooling_norm,
        "dynamic_img_size": False,
    }
    if is_rotary:
        arguments |= _rotary_arguments(config)
    if is_sapiens(config):
        arguments["num_kv_heads"] = config.num_heads
    if config.pooling.startswith("map"):
        mlp_dim = config.pooling_mlp_dim or config.mlp_dim
        arguments["attn_pool_num_heads"] = config.pooling_heads
        arguments["attn_pool_mlp_ratio"] = ratio_of(mlp_dim, config.width)
    return arguments


def beit_arguments(config: ViTConfig) -> dict:
    """Return the arguments of Beit, beside the common ones.

    Args:
        config: Configuration of the model.
    """
    return {
        "qkv_bias": config.qkv_bias != "none",
        "init_values": _init_values(config),
        "use_abs_pos_emb": False,
        "use_rel_pos_bias": True,
        "use_fc_norm": config.use_pooling_norm,
    }


def relative_arguments(config: ViTConfig) -> dict:
    """Return the arguments of VisionTransformerRelPos, beside the common ones.

    Args:
        config: Configuration of the model.
    """
    return {
        "class_token": config.use_class_token,
        "fc_norm": config.use_pooling_norm,
        "qkv_bias": config.qkv_bias == "all",
        "qk_norm": config.qk_norm == "head",
        "init_values": _init_values(config),
        "rel_pos_type": "mlp",
        "rel_pos_dim": config.relative_hidden_dim,
        "shared_rel_pos": config.use_shared_relative_positions,
    }


def distilled_arguments(config: ViTConfig) -> dict:
    """Return the arguments of VisionTransformerDistilled.

    Args:
        config: Configuration of the model.
    """
    return {"act_layer": ACT_LAYERS[config.activation]}
