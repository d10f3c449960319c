"""The graph of a VisionTransformer, from images to its output."""

import keras

from keras_vit.models.config import ViTConfig
from keras_vit.models.parts import (
    add_prefix_and_positions,
    head,
    layer_norm,
    patch_encoder,
    pooling,
    pre_logits,
    stem,
    transformer_block,
)
from keras_vit.models.position_inputs import connect_positions


def connect_layers(config: ViTConfig, images, dtype=None):
    """Return the output of a new model of `config` for `images`.

    Shapes:
        images: a symbolic tensor (B, H, W, C).

    Args:
        config: The configuration of the model.
        images: The input of the first layer.
        dtype: Dtype policy of the layers.
    """
    features = images
    if config.stem_stages is not None:
        features = stem(config, dtype)(images)  # (B, H', W', C')
    x = patch_encoder(config, dtype)(features)  # (B, N, D)
    if config.use_patch_norm:
        x = layer_norm(config, "patch_norm", dtype)(x)
    x = add_prefix_and_positions(config, x, features, dtype)  # (B, T, D)
    if config.use_embedding_norm:
        x = layer_norm(config, "embedding_norm", dtype)(x)
    if config.dropout_rate:
        x = keras.layers.Dropout(
            config.dropout_rate, dtype=dtype, name="dropout"
        )(x)
    positions = connect_positions(config, x, features, dtype)
    for index in range(config.depth):
        x = transformer_block(config, index, dtype)(x, **positions[index])
    if config.use_final_norm and not config.use_pooling_norm:
        x = layer_norm(config, "encoder_norm", dtype)(x)
    if layer := pooling(config, dtype):
        x = layer(x)  # (B, D)
    if config.use_final_norm and config.use_pooling_norm:
        x = layer_norm(config, "pooling_norm", dtype)(x)
    if config.representation_size:
        x = pre_logits(config, dtype)(x)  # (B, R)
    return head(config, dtype)(x) if config.num_classes else x
