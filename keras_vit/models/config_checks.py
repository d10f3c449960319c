"""Checks of the values of a ViTConfig."""

import dataclasses
import math
import types
import typing

from keras_vit.arguments import is_number, is_whole
from keras_vit.layers.activations import ACTIVATIONS
from keras_vit.layers.multi_head_self_attention import QK_NORMS, QKV_BIASES
from keras_vit.layers.norms import NORMS
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.position_kinds import (
    POSITION_EMBEDDINGS,
    POSITION_PLACEMENTS,
)
from keras_vit.layers.relative_positions import RELATIVE_POSITIONS
from keras_vit.layers.resize_rules import RESIZES
from keras_vit.layers.rotary_kinds import ROTARY_POSITIONS
from keras_vit.layers.stem_epsilons import STEM_EPSILONS
from keras_vit.layers.transformer_block import (
    LAYER_SCALE_BRANCHES,
    NORM_PLACEMENTS,
)
from keras_vit.preprocessing.settings import Preprocessing
from keras_vit.tables import pick

# The table of each field that is a name.
CHOICES = {
    "position_embedding": POSITION_EMBEDDINGS,
    "position_resize": RESIZES,
    "position_placement": POSITION_PLACEMENTS,
    "rotary_positions": ROTARY_POSITIONS,
    "relative_positions": RELATIVE_POSITIONS,
    "norm": NORMS,
    "norm_placement": NORM_PLACEMENTS,
    "layer_scale_branches": LAYER_SCALE_BRANCHES,
    "qkv_bias": QKV_BIASES,
    "qk_norm": QK_NORMS,
    "activation": ACTIVATIONS,
    "pooling": POOLINGS,
    "stem_epsilons": STEM_EPSILONS,
}
POSITIVE_FIELDS = (
    "width",
    "depth",
    "mlp_dim",
    "num_heads",
    "patch_size",
    "channels",
)
OPTIONAL_SIZES = (
    "pooling_heads",
    "pooling_mlp_dim",
    "relative_hidden_dim",
    "representation_size",
)
RATE_FIELDS = (
    "dropout_rate",
    "attention_dropout_rate",
    "stochastic_depth_rate",
)


def _are_whole(value):
    return isinstance(value, tuple) and all(map(is_whole, value))


# For each annotation of a field: a description and a check of its values.
ANNOTATIONS = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", is_whole),
    float: ("a number", is_number),
    tuple: ("a tuple of whole numbers", _are_whole),
    types.NoneType: ("None", lambda value: value is None),
}


def check_config(config):
    """Raise a ValueError unless the values of a ViTConfig are valid.

    Args:
        config: The configuration.
    """
    _check_kinds(config)
    _check_numbers(config)
    _check_image_size(config)
    _check_preprocessing(config)
    for name, table in CHOICES.items():
        pick(table, getattr(config, name), name)
    _check_tokens(config)
    _check_positions(config)


def _check_kinds(config):
    """Check types, except those of table names and of the preprocessing."""
    for field in dataclasses.fields(config):
        is_union = isinstance(field.type, types.UnionType)
        parts = typing.get_args(field.type) if is_union else [field.type]
        kinds = [typing.get_origin(part) or part for part in parts]
        if not set(kinds) <= set(ANNOTATIONS):
            continue
        rules, tests = zip(*(ANNOTATIONS[kind] for kind in kinds))
        if not any(test(getattr(config, field.name)) for test in tests):
            _fail(config, field.name, f"must be {' or '.join(rules)}")


def _check_numbers(config):
    for name in POSITIVE_FIELDS:
        if getattr(config, name) < 1:
            _fail(config, name, "must be positive")
    for name in RATE_FIELDS:
        if not 0 <= getattr(config, name) < 1:
            _fail(config, name, "must be in [0, 1)")
    if not 0 < config.layer_norm_epsilon < math.inf:
        _fail(config, "layer_norm_epsilon", "must be positive")
    if not 0 < config.rotary_temperature < math.inf:
        _fail(config, "rotary_temperature", "must be positive")
    if not math.isfinite(config.layer_scale_init or 0.0):
        _fail(config, "layer_scale_init", "must be finite or None")
    for name in OPTIONAL_SIZES:
        if (getattr(config, name) or 1) < 1:
            _fail(config, name, "must be positive or None")
    if config.num_classes < 0:
        _fail(config, "num_classes", "must be 0 (no head) or more")
    if config.num_registers < 0:
        _fail(config, "num_registers", "must be 0 or more")
    if min(config.stem_stages or (1,)) < 1:
        _fail(config, "stem_stages", "must have a unit or more in each stage")
    if config.width % config.num_heads:
        raise ValueError(
            "`num_heads` must divide `width`. Received: "
            f"num_heads={config.num_heads}, width={config.width}"
        )
    if config.width % (config.pooling_heads or 1):
        _fail(config, "pooling_heads", "must divide `width`")


def _check_image_size(config):
    if len(config.image_size) != 2 or min(config.image_size) < 1:
        _fail(
            config,
            "image_size",
            "must be positive: a number or (height, width)",
        )
    rests = [size % config.patch_size for size in config.feature_size]
    if not min(config.grid_size) or (any(rests) and not config.ignore_border):
        what = "image" if config.stem_stages is None else "feature map"
        raise ValueError(
            f"`patch_size` must divide the {what}, "
            f"{config.feature_size[0]}x{config.feature_size[1]}. Received: "
            f"patch_size={config.patch_size}, image_size={config.image_size}"
        )


def _check_preprocessing(config):
    settings = config.preprocessing
    if not isinstance(settings, Preprocessing):
        _fail(
            config,
            "preprocessing",
            "must be a `Preprocessing`, a name or (mean, deviation)",
        )
    if len(settings.mean) not in (1, config.channels):
        raise ValueError(
            "`preprocessing` must have a mean for each channel, or one for "
            f"all. Received: {len(settings.mean)} for "
            f"channels={config.channels}"
        )


def _check_tokens(config):
    _check_needed_token(config, "pooling")
    count = config.num_prefix_tokens
    if _needs(config, "pooling", "pooling_indices") and not (
        config.pooling_indices
        and all(0 <= index < count for index in config.pooling_indices)
    ):
        rule = f"must be places among the {count} tokens before the patches"
        _fail(config, "pooling_indices", rule)
    if config.use_distillation_token and not config.use_class_token:
        _fail(
            config,
            "use_distillation_token",
            "needs the class token (`use_class_token=True`)",
        )


def _check_positions(config):
    if config.rotary_positions != "none" and config.head_size % 4:
        raise ValueError(
            "`rotary_positions` needs heads of a multiple of 4 features. "
            f"Received: rotary_positions={config.rotary_positions!r}, "
            f"num_heads={config.num_heads}, width={config.width}"
        )
    _check_needed_token(config, "rotary_positions")
    if config.position_placement != "stem":
        for name, bad in (
            ("position_embedding", "none"),
            ("use_prefix_positions", False),
        ):
            if getattr(config, name) == bad:
                raise ValueError(
                    f"`{name}` must not be {bad!r} if positions are added "
                    "before every block. Received: "
                    f"position_placement={config.position_placement!r}"
                )
    if config.relative_positions == "none":
        return
    if (
        _needs(config, "relative_positions", "relative_hidden_dim")
        and not config.relative_hidden_dim
    ):
        _fail(config, "relative_hidden_dim", "must be given for an MLP")
    if config.use_dynamic_image_size:
        raise ValueError(
            "`relative_positions` are those of one grid of patches. "
            "Received: use_dynamic_image_size=True"
        )


def _check_needed_token(config, name):
    """Check that the model has the token that a chosen layer needs."""
    layer_class = CHOICES[name][getattr(config, name)]
    token = layer_class and layer_class.needed_token
    if token and not getattr(config, f"use_{token}_token"):
        raise ValueError(
            f"`{name}={getattr(config, name)!r}` needs the {token} token. "
            f"Received: use_{token}_token=False"
        )


def _needs(config, name, field):
    """Return whether the constructor of a chosen layer takes a field."""
    layer_class = CHOICES[name][getattr(config, name)]
    return layer_class is not None and field in layer_class.needs


def _fail(config, name, rule):
    raise ValueError(
        f"`{name}` {rule}. Received: {name}={getattr(config, name)!r}"
    )
