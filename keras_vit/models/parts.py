"""The layers of a VisionTransformer, made from its configuration.

`connect_layers` in connecting.py joins them. Every layer has a name.
"""

import dataclasses

import keras

from keras_vit.layers.choosing import make_chosen
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.dtypes import float32_unless_quantized, policy_at
from keras_vit.layers.norms import make_norm
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.position_kinds import make_position_embedding
from keras_vit.layers.prefix_tokens import PrefixTokens
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.rotary_kinds import ROTARY_POSITIONS
from keras_vit.layers.transformer_block import TransformerBlock


def stem(config, dtype):
    """Return the ResNet before the patches of a hybrid."""
    return ResNetStem(
        config.stem_stages, config.stem_epsilons, dtype=dtype, name="stem"
    )


def patch_encoder(config, dtype):
    """Return the projection of the patches."""
    return PatchEncoder(
        config.patch_size,
        config.width,
        use_bias=config.use_patch_bias,
        ignore_border=config.ignore_border,
        dtype=dtype,
        name="patch_encoder",
    )


def add_prefix_and_positions(config, tokens, features, dtype):
    """Return the patches after the prefix tokens, with positions added."""
    if not config.use_prefix_positions:
        tokens = add_positions(config, tokens, features, dtype)
    if config.num_registers:
        tokens = PrefixTokens(
            config.num_registers, dtype=dtype, name="registers"
        )(tokens)
    if config.use_distillation_token:
        tokens = PrefixTokens(1, dtype=dtype, name="distillation_token")(tokens)
    if config.use_class_token:
        tokens = ClassToken(dtype=dtype, name="class_token")(tokens)
    if config.use_prefix_positions:
        tokens = add_positions(config, tokens, features, dtype)
    return tokens  # (B, T, D)


def stem_positions(config, dtype=None):
    """Return the position embedding before the first block, or None."""
    if config.position_placement != "stem":
        return None
    has_prefix = config.use_prefix_positions
    return make_position_embedding(
        config.position_embedding,
        grid_size=config.grid_size,
        num_prefix_tokens=config.num_prefix_tokens if has_prefix else 0,
        patch_size=config.patch_size,
        resize=config.position_resize,
        dtype=dtype,
        name="position_embedding",
    )


def add_positions(config, tokens, features, dtype):
    """Return `tokens` with the position embedding of the stem added."""
    layer = stem_positions(config, dtype)
    if layer is None:
        return tokens
    if config.use_dynamic_image_size:
        return layer(tokens, features)
    return layer(tokens)


def transformer_block(config, index, dtype):
    """Return block `index`; the stochastic depth rate grows with the index."""
    depth_rate = config.stochastic_depth_rate * index
    return TransformerBlock(
        config.num_heads,
        config.mlp_dim,
        dropout_rate=config.dropout_rate,
        attention_dropout_rate=config.attention_dropout_rate,
        stochastic_depth_rate=depth_rate / max(config.depth - 1, 1),
        activation=config.activation,
        layer_norm_epsilon=config.layer_norm_epsilon,
        use_remat=config.use_remat,
        norm=config.norm,
        norm_placement=config.norm_placement,
        layer_scale_init=config.layer_scale_init,
        layer_scale_branches=config.layer_scale_branches,
        attention_options={
            "qkv_bias": config.qkv_bias,
            "use_out_bias": config.use_block_bias,
            "qk_norm": config.qk_norm,
            "norm": config.norm,
            "use_inner_norm": config.use_attention_inner_norm,
            "rotary_pairs": rotary_pairs(config),
        },
        mlp_options={
            "is_gated": config.use_gated_mlp,
            "norm": config.norm,
            "use_inner_norm": config.use_mlp_inner_norm,
            "use_bias": config.use_block_bias,
        },
        dtype=dtype,
        name=f"block_{index:02d}",
    )


def rotary_pairs(config):
    """Return which features the rotary positions of `config` pair."""
    layer_class = ROTARY_POSITIONS[config.rotary_positions]
    return layer_class.pairs if layer_class else "halves"


def layer_norm(config, name, dtype):
    """Return a norm of the kind and with the epsilon of `config`."""
    return make_norm(
        config.norm, config.layer_norm_epsilon, dtype=dtype, name=name
    )


def pooling(config, dtype=None):
    """Return the pooling of `config`, or None to return all tokens."""
    choices = dataclasses.asdict(config)
    choices["num_prefix_tokens"] = config.num_prefix_tokens
    choices["num_heads"] = config.pooling_heads or config.num_heads
    choices["mlp_dim"] = config.pooling_mlp_dim or config.mlp_dim
    return make_chosen(
        POOLINGS,
        config.pooling,
        "pooling",
        choices,
        dtype=dtype,
        name="pooling",
    )


def pre_logits(config, dtype):
    """Return the tanh layer before the classifier."""
    return keras.layers.Dense(
        config.representation_size,
        activation="tanh",
        kernel_initializer="lecun_normal",
        dtype=policy_at(dtype, "pre_logits"),
        name="pre_logits",
    )


def pooled_head(config, dtype=None):
    """Return the classifier that belongs to the pooling, or None."""
    layer_class = POOLINGS[config.pooling]
    if layer_class is None or layer_class.head_class is None:
        return None
    return layer_class.head_class(
        config.num_classes,
        config.classifier_activation,
        config.head_bias,
        dtype=float32_unless_quantized(dtype, "predictions"),
        name="predictions",
    )


def head(config, dtype):
    """Return the classifier; its kernel is zero, as in the official code."""
    return pooled_head(config, dtype) or keras.layers.Dense(
        config.num_classes,
        activation=config.classifier_activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype=float32_unless_quantized(dtype, "predictions"),
        name="predictions",
    )
