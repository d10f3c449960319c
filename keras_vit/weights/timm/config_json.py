"""The `config.json` with which timm builds the model of a ViTConfig.

timm builds a model by the name of an architecture, whose function fixes what
no argument can say: the class, the kind and the epsilon of the norms, and the
MLP. `model_args` sets everything else.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.weights.timm.architectures import settings_of
from keras_vit.weights.timm.class_arguments import (
    ACT_LAYERS,
    CLASS_DEFAULTS,
    ROPE_TYPES,
    beit_arguments,
    distilled_arguments,
    eva_arguments,
    is_eva,
    is_sapiens,
    ratio_of,
    relative_arguments,
    vision_transformer_arguments,
)

POOLS = {
    "token": "token",
    "avg": "avg",
    "max": "max",
    "none": "",
    "distilled": "token",
    "map": "map",
    "map_patches": "map",
}
# What timm has of the fields of ViTConfig that name a row of a table.
TIMM_VALUES = {
    "activation": ACT_LAYERS,
    "pooling": POOLS,
    "rotary_positions": ROPE_TYPES,
    "relative_positions": ("table", "mlp"),
    "norm": ("rms",),
    "norm_placement": ("after",),
    "layer_scale_branches": ("attention",),
    "qkv_bias": ("query_value", "none"),
    "qk_norm": ("head",),
}


class Base(NamedTuple):
    """An architecture whose function builds models of a class.

    Args:
        fits: Returns whether the class and the fixed parts are those of a
            configuration.
        arguments: Returns the arguments of the class for a configuration.
        architecture: Name of the architecture.
        later_fields: Fields of ViTConfig after 2021 that it can express.
    """

    fits: Callable[[ViTConfig], bool]
    arguments: Callable[[ViTConfig], dict]
    architecture: str
    later_fields: tuple[str, ...]


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
    if base.architecture == PLAIN_NAME:
        # Its defaults are those of the class.
        for name, value in CLASS_DEFAULTS.items():
            if arguments[name] == value:
                del arguments[name]
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
            **_describe_images(config),
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }


def _describe_images(config):
    settings = config.preprocessing
    mean, deviation = settings.for_channels(config.channels)
    is_squashed = settings.resize_mode == "squash"
    return {
        "interpolation": settings.interpolation,
        "crop_pct": settings.crop_fraction,
        "crop_mode": "squash" if is_squashed else "center",
        "mean": mean,
        "std": deviation,
    }


def find_base(config: ViTConfig) -> Base:
    """Return the architecture that is the nearest to a configuration.

    Args:
        config: Configuration of the model.
    """
    return next(base for base in BASES if base.fits(config))


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
        "mlp_ratio": ratio_of(hidden, config.width),
        "global_pool": POOLS[config.pooling],
    }


def epsilon_of(config: ViTConfig) -> float:
    """Return the epsilon that timm's model computes with.

    Args:
        config: Configuration of the model.
    """
    return settings_of(find_base(config).architecture)["layer_norm_epsilon"]


def _has_large_epsilon(config):
    return config.layer_norm_epsilon == 1e-5


# The function of the plain model, and of that with the gate packed.
PLAIN_NAME = "vit_base_patch16_224"
PACKED = "vit_giant_patch14_dinov2"
RELATIVE_FIELDS = ("relative_positions", "qkv_bias", "layer_scale_init")
VISION_TRANSFORMER_FIELDS = (
    "num_registers",
    "use_prefix_positions",
    "use_embedding_norm",
    "use_patch_bias",
    "use_final_norm",
    "qkv_bias",
    "use_block_bias",
    "qk_norm",
    "use_attention_inner_norm",
    "use_mlp_inner_norm",
    "layer_scale_init",
    "activation",
    "pooling",
)
EVA_FIELDS = (
    "rotary_positions",
    "norm_placement",
    "use_gated_mlp",
    "pooling_heads",
    "pooling_mlp_dim",
    "layer_scale_branches",
    # Its attention pooling reads all tokens, and its projections have biases.
    *(
        name
        for name in VISION_TRANSFORMER_FIELDS
        if name not in ("pooling", "use_block_bias")
    ),
)
# The first row that fits counts.
BASES = (
    Base(
        lambda config: config.relative_positions == "table",
        beit_arguments,
        "beit_base_patch16_224",
        RELATIVE_FIELDS,
    ),
    Base(
        lambda config: (
            config.relative_positions == "mlp"
            and config.norm_placement == "after"
        ),
        relative_arguments,
        "vit_relpos_base_patch16_rpn_224",
        (*RELATIVE_FIELDS, "norm_placement", "qk_norm"),
    ),
    Base(
        lambda config: config.relative_positions == "mlp",
        relative_arguments,
        "vit_relpos_base_patch16_224",
        (*RELATIVE_FIELDS, "qk_norm"),
    ),
    Base(
        lambda config: config.use_distillation_token,
        distilled_arguments,
        "deit_tiny_distilled_patch16_224",
        ("use_distillation_token", "pooling", "activation"),
    ),
    Base(
        is_sapiens,
        eva_arguments,
        "vit_base_patch16_sapiens2",
        ("norm", *EVA_FIELDS),
    ),
    Base(
        lambda config: is_eva(config) and _has_large_epsilon(config),
        eva_arguments,
        "vit_small_patch16_dinov3",
        EVA_FIELDS,
    ),
    Base(is_eva, eva_arguments, "eva02_tiny_patch14_224", EVA_FIELDS),
    Base(
        lambda config: config.norm == "rms" and config.use_gated_mlp,
        vision_transformer_arguments,
        "aimv2_large_patch14_224",
        ("norm", "use_patch_norm", "use_gated_mlp", *VISION_TRANSFORMER_FIELDS),
    ),
    Base(
        lambda config: config.norm == "rms",
        vision_transformer_arguments,
        "test_vit4",
        ("norm", *VISION_TRANSFORMER_FIELDS),
    ),
    Base(
        lambda config: config.use_gated_mlp,
        vision_transformer_arguments,
        PACKED,
        ("use_gated_mlp", *VISION_TRANSFORMER_FIELDS),
    ),
    Base(
        lambda config: config.norm_placement == "after",
        vision_transformer_arguments,
        "vit_base_patch16_rpn_224",
        ("norm_placement", *VISION_TRANSFORMER_FIELDS),
    ),
    Base(
        _has_large_epsilon,
        vision_transformer_arguments,
        "vit_base_patch16_clip_224",
        VISION_TRANSFORMER_FIELDS,
    ),
    Base(
        lambda config: True,
        vision_transformer_arguments,
        PLAIN_NAME,
        VISION_TRANSFORMER_FIELDS,
    ),
)
