"""The layers of a VisionTransformer, made from its configuration.

`connect` in vision_transformer.py joins them. Every layer has a name.
"""

import dataclasses

import keras

from keras_vit.layers.dtypes import float32_unless_quantized, policy_at
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.pooling import make_pooling
from keras_vit.layers.position_embedding import make_position_embedding
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.transformer_block import TransformerBlock


def stem(config, dtype):
    """Return the ResNet before the patches of a hybrid."""
    return ResNetStem(
        config.stem_stages, config.stem_epsilons, dtype=dtype, name="stem"
    )


def add_positions(config, tokens, features, dtype):
    """Return `tokens` with the position embedding of `config` added."""
    layer = make_position_embedding(
        config.position_embedding,
        grid_size=config.grid_size,
        num_prefix_tokens=int(config.use_class_token),
        patch_size=config.patch_size,
        dtype=dtype,
        name="position_embedding",
    )
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
        gelu=config.gelu,
        layer_norm_epsilon=config.layer_norm_epsilon,
        use_remat=config.use_remat,
        dtype=dtype,
        name=f"block_{index:02d}",
    )


def layer_norm(config, name, dtype):
    """Return a layer norm with the epsilon of `config`."""
    return LayerNorm(config.layer_norm_epsilon, dtype=dtype, name=name)


def pool(config, tokens, dtype):
    """Return the tokens after the pooling of `config`."""
    choices = dataclasses.asdict(config)
    choices["num_prefix_tokens"] = int(config.use_class_token)
    layer = make_pooling(config.pooling, choices, dtype=dtype, name="pooling")
    return tokens if layer is None else layer(tokens)


def pre_logits(config, dtype):
    """Return the tanh layer before the classifier."""
    return keras.layers.Dense(
        config.representation_size,
        activation="tanh",
        kernel_initializer="lecun_normal",
        dtype=policy_at(dtype, "pre_logits"),
        name="pre_logits",
    )


def head(config, dtype):
    """Return the classifier; its kernel is zero, as in the official code."""
    return keras.layers.Dense(
        config.num_classes,
        activation=config.classifier_activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype=float32_unless_quantized(dtype, "predictions"),
        name="predictions",
    )
