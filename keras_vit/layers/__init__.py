"""The layers of a Vision Transformer."""

from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.mlp_block import GELUS, MlpBlock
from keras_vit.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.pooling import (
    POOLINGS,
    AttentionPooling,
    AveragePooling,
    MaxPooling,
    TokenPooling,
)
from keras_vit.layers.position_embedding import (
    POSITION_EMBEDDINGS,
    LearnedPositionEmbedding,
    LearnedPositionEmbedding2D,
    SinCosPositionEmbedding,
    SinCosPositionEmbedding2D,
)
from keras_vit.layers.position_grid import resize_position_grid
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.stem_epsilons import STEM_EPSILONS
from keras_vit.layers.stochastic_depth import StochasticDepth
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "GELUS",
    "POOLINGS",
    "POSITION_EMBEDDINGS",
    "STEM_EPSILONS",
    "AttentionPooling",
    "AveragePooling",
    "ClassToken",
    "LayerNorm",
    "LearnedPositionEmbedding",
    "LearnedPositionEmbedding2D",
    "MaxPooling",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PatchEncoder",
    "ResNetStem",
    "SinCosPositionEmbedding",
    "SinCosPositionEmbedding2D",
    "StochasticDepth",
    "TokenPooling",
    "TransformerBlock",
    "resize_position_grid",
]
