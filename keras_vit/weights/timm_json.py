"""The `config.json` with which timm builds the model of a ViTConfig.

timm builds a model by the name of an architecture, whose function fixes what
no argument can say: the class, the kind and the epsilon of the norms, and the
MLP. `model_args` sets everything else.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.weights.timm_architectures import settings_of

ROPE_TYPES = {"axial": "cat", "mixed": "mixed", "centered": "dinov3"}
POOLS = {"none": "", "distilled": "token", "map_patches": "map"}
ACTIVATIONS = {"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}


class Base(NamedTuple):
    """An architecture whose function builds models of a class.

    Args:
        fits: Returns whether the class and the fixed parts are those of a
            configuration.
        arguments: Returns the arguments of the class for a configuration.
        architecture: Name of the architecture.
    """

    fits: Callable[[ViTConfig], bool]
    arguments: Callable[[ViTConfig], dict]
    architecture: str


def make_json(config: ViTConfig) -> dict:
    """Return the content of `config.json`.

    Args:
        config: Configuration of the model.

    Raises:
        ValueError: If the model is a hybrid.
    """
    if config.stem_stages is not None:
        raise ValueError(
            "timm has no configuration file for hybrids; write the model to a "
            "`.safetensors` file"
        )
    base = find_base(config)
    arguments = {**_common(config), **base.arguments(config)}
    return {
        "architecture": base.architecture,
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": config.num_classes,
            "input_size": [config.channels, *config.image_size],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }


def find_base(config: ViTConfig) -> Base:
    """Return the architecture that is the nearest to a configuration.

    Args:
        config: Configuration of the model.
    """
    return next(base for base in BASES if base.fits(config))


def is_eva(config: ViTConfig) -> bool:
    """Return whether timm's class is Eva.

    Args:
        config: Configuration of the model.
    """
    has_bias = config.qkv_bias == "query_value"
    is_table = config.relative_positions == "table"
    return config.rotary_positions != "none" or (has_bias and not is_table)


def explain_refusal(config: ViTConfig) -> str | None:
    """Return why no class of timm computes a model, or None.

    Args:
        config: Configuration of the model.
    """
    relative, rotary = config.relative_positions, config.rotary_positions
    is_rms = config.norm == "rms"
    is_glu = config.use_gated_mlp and config.activation != "silu"
    reasons = {
        "it has no pre-logits layer": config.representation_size,
        f"it has no pooling {config.pooling!r}": config.pooling
        in ("probe", "token_and_avg"),
        "its norms of queries and keys are those of each head": (
            config.qk_norm == "width"
        ),
        "its relative positions stand alone": relative != "none"
        and (rotary != "none" or config.position_embedding != "none"),
        "its gates are SiLU": is_glu,
        "a norm of the patches comes with RMS norms and a gated MLP": (
            config.use_patch_norm and not (is_rms and config.use_gated_mlp)
        ),
        "RMS norms and a gated MLP come with a norm of the patches": (
            is_rms and config.use_gated_mlp and not config.use_patch_norm
        ),
        "its class with a distillation token has no other later parts": (
            config.use_distillation_token
            and (config.num_registers or is_eva(config) or relative != "none")
        ),
        "only its models with a norm before the first block lack the bias of "
        "the patches": config.use_patch_bias == config.use_embedding_norm,
    }
    return next((text for text, holds in reasons.items() if holds), None)


def _common(config):
    packs = config.use_gated_mlp and find_base(config).architecture == PACKED
    hidden = (1 + packs) * config.mlp_dim
    return {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": _ratio(hidden, config.width),
        "global_pool": POOLS.get(config.pooling, config.pooling),
    }


def _ratio(mlp_dim, width):
    """Return a ratio for which timm's int(width * ratio) is `mlp_dim`."""
    ratio = mlp_dim / width
    exact = int(width * ratio) == mlp_dim
    return ratio if exact else math.nextafter(ratio, math.inf)


def _vision_transformer(config):
    has_token = config.use_class_token or config.num_registers
    arguments = {
        "class_token": config.use_class_token,
        "fc_norm": config.use_pooling_norm,
        "act_layer": ACTIVATIONS.get(config.activation, "silu"),
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
        "init_values": config.layer_scale_init,
        "pool_include_prefix": bool(has_token and config.pooling == "map"),
    }
    # What the plain model has is left out.
    arguments |= {
        name: value
        for name, value in later.items()
        if value != PLAIN[name] or find_base(config).architecture != PLAIN_NAME
    }
    return arguments


def _eva(config):
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
        "init_values": config.layer_scale_init,
        "use_post_norm": config.norm_placement == "after",
        "use_pre_transformer_norm": config.use_embedding_norm,
        "use_post_transformer_norm": config.use_final_norm
        and not config.use_pooling_norm,
        "use_fc_norm": config.use_final_norm and config.use_pooling_norm,
        "dynamic_img_size": False,
    }
    if is_rotary:
        kind = config.rotary_positions
        reference = config.rotary_reference_size
        axes = "ij" if config.rotary_axes == "yx" else "xy"
        arguments |= {
            "rope_type": ROPE_TYPES[kind],
            "rope_temperature": config.rotary_temperature,
            "rope_grid_indexing": "xy" if kind == "mixed" else axes,
            "rope_grid_offset": config.rotary_offset,
            "rope_rotate_half": kind == "centered",
            "ref_feat_shape": reference and list(reference),
        }
        if kind == "centered":
            del arguments["rope_grid_offset"]
    if config.pooling.startswith("map"):
        mlp_dim = config.pooling_mlp_dim or config.mlp_dim
        arguments["attn_pool_num_heads"] = config.pooling_heads
        arguments["attn_pool_mlp_ratio"] = _ratio(mlp_dim, config.width)
    return arguments


def _beit(config):
    return {
        "qkv_bias": config.qkv_bias != "none",
        "init_values": config.layer_scale_init,
        "use_abs_pos_emb": False,
        "use_rel_pos_bias": True,
        "use_fc_norm": config.use_pooling_norm,
    }


def _relative(config):
    return {
        "class_token": config.use_class_token,
        "fc_norm": config.use_pooling_norm,
        "qkv_bias": config.qkv_bias == "all",
        "qk_norm": config.qk_norm == "head",
        "init_values": config.layer_scale_init,
        "rel_pos_type": "mlp",
        "rel_pos_dim": config.relative_hidden_dim,
        "shared_rel_pos": config.use_shared_relative_positions,
    }


def _distilled(config):
    return {"act_layer": ACTIVATIONS.get(config.activation, "silu")}


def has_split_projections(config: ViTConfig) -> bool:
    """Return whether timm's queries, keys and values have arrays of their own.

    Args:
        config: Configuration of the model.
    """
    return is_eva(config) and config.use_gated_mlp and config.use_mlp_inner_norm


def has_split_gate(config: ViTConfig) -> bool:
    """Return whether timm's gate has an array of its own.

    Args:
        config: Configuration of the model.
    """
    return config.use_gated_mlp and (
        config.norm == "rms"
        or config.use_mlp_inner_norm
        or config.rotary_positions == "centered"
    )


def epsilon_of(config: ViTConfig) -> float:
    """Return the epsilon that timm's model computes with.

    Args:
        config: Configuration of the model.
    """
    return settings_of(find_base(config).architecture)["layer_norm_epsilon"]


def _has_large_epsilon(config):
    return config.layer_norm_epsilon == 1e-5


# The function of the plain model, with the defaults of the class.
PLAIN_NAME = "vit_base_patch16_224"
PACKED = "vit_giant_patch14_dinov2"
PLAIN = {
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
# The first row that fits counts.
BASES = (
    Base(
        lambda config: config.relative_positions == "table",
        _beit,
        "beit_base_patch16_224",
    ),
    Base(
        lambda config: (
            config.relative_positions == "mlp"
            and config.norm_placement == "after"
        ),
        _relative,
        "vit_relpos_base_patch16_rpn_224",
    ),
    Base(
        lambda config: config.relative_positions == "mlp",
        _relative,
        "vit_relpos_base_patch16_224",
    ),
    Base(
        lambda config: config.use_distillation_token,
        _distilled,
        "deit_tiny_distilled_patch16_224",
    ),
    Base(
        lambda config: is_eva(config) and _has_large_epsilon(config),
        _eva,
        "vit_small_patch16_dinov3",
    ),
    Base(is_eva, _eva, "eva02_tiny_patch14_224"),
    Base(
        lambda config: config.norm == "rms" and config.use_gated_mlp,
        _vision_transformer,
        "aimv2_large_patch14_224",
    ),
    Base(
        lambda config: config.norm == "rms",
        _vision_transformer,
        "test_vit4",
    ),
    Base(
        lambda config: config.use_gated_mlp,
        _vision_transformer,
        PACKED,
    ),
    Base(
        lambda config: config.norm_placement == "after",
        _vision_transformer,
        "vit_base_patch16_rpn_224",
    ),
    Base(_has_large_epsilon, _vision_transformer, "vit_base_patch16_clip_224"),
    Base(lambda config: True, _vision_transformer, PLAIN_NAME),
)
