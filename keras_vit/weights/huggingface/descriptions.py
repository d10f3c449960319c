"""The entries of config.json that only some families of classes have.

`describe_classes` returns those with the names of the classes.
"""

from collections.abc import Sequence

from keras_vit.models.config import ViTConfig


def describe_vit(config: ViTConfig) -> dict:
    """Return the entries of vit.

    Args:
        config: Configuration of the model.
    """
    found = {
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": config.attention_dropout_rate,
        "initializer_range": 0.02,
        "encoder_stride": config.patch_size,
    }
    if config.representation_size:
        found["pooler_output_size"] = config.representation_size
        found["pooler_act"] = "tanh"
    return found


def describe_dinov2(config: ViTConfig) -> dict:
    """Return the entries of dinov2.

    Args:
        config: Configuration of the model.
    """
    found = {
        "layerscale_value": config.layer_scale_init,
        "use_swiglu_ffn": config.use_gated_mlp,
        "mlp_ratio": dinov2_ratio(config),
        "apply_layernorm": True,
    }
    if config.use_gated_mlp:
        found["hidden_act"] = "gelu"  # Its gates are SiLU nevertheless.
    if config.num_registers:
        found["num_register_tokens"] = config.num_registers
    return found


def dinov2_ratio(config: ViTConfig) -> int | None:
    """Return the whole `mlp_ratio` for which DINOv2 has the MLP of a model.

    Args:
        config: Configuration of the model.

    Returns:
        The ratio, or None if there is none.
    """
    for ratio in range(1, 65):
        hidden = config.width * ratio
        if config.use_gated_mlp:
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp_dim:
            return ratio
    return None


def describe_dinov3(config: ViTConfig) -> dict:
    """Return the entries of dinov3.

    Args:
        config: Configuration of the model.
    """
    has_all = config.qkv_bias == "all"
    return {
        "layerscale_value": config.layer_scale_init,
        "num_register_tokens": config.num_registers,
        "rope_theta": config.rotary_temperature,
        "use_gated_mlp": config.use_gated_mlp,
        "query_bias": config.qkv_bias != "none",
        "key_bias": has_all,
        "value_bias": config.qkv_bias != "none",
        "proj_bias": True,
        "mlp_bias": True,
        "apply_layernorm": True,
    }


def describe_beit(config: ViTConfig) -> dict:
    """Return the entries of beit.

    Args:
        config: Configuration of the model.
    """
    is_shared = config.use_shared_relative_positions
    return {
        "use_mean_pooling": config.pooling == "avg",
        "use_relative_position_bias": (
            config.relative_positions == "table" and not is_shared
        ),
        "use_shared_relative_position_bias": is_shared,
        "use_absolute_position_embeddings": (
            config.position_embedding != "none"
        ),
        # With 0, BEiT would have no LayerScale.
        "layer_scale_init_value": config.layer_scale_init or 1e-5,
    }


def describe_aimv2(config: ViTConfig) -> dict:
    """Return the entries of aimv2.

    Args:
        config: Configuration of the model.
    """
    return {
        "rms_norm_eps": config.layer_norm_epsilon,
        "use_head": config.pooling == "probe",
        "qkv_bias": False,
        "mlp_bias": False,
        "is_native": False,
    }


def describe_classes(names: Sequence[str]) -> dict:
    """Return the entries with the names of the classes.

    Args:
        names: The names in the order of the logits.
    """
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
