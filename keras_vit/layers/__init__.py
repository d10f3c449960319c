"""The layers of a Vision Transformer."""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.block import LayerScale, StochasticDepth, TransformerBlock
from keras_vit.layers.fewer_tokens import PatchDropout
from keras_vit.layers.mlp import ACTIVATIONS, MlpBlock
from keras_vit.layers.norms import NORMS, LayerNorm, RmsNorm, UnitNorm
from keras_vit.layers.pooling import (
    POOLINGS,
    AttentionPooling,
    AveragePooling,
    DistilledHead,
    DistilledPooling,
    MaxPooling,
    PatchAttentionPooling,
    PrefixPooling,
    ProbePooling,
    TokenAndAveragePooling,
    TokenPooling,
)
from keras_vit.layers.positions import (
    POSITION_EMBEDDINGS,
    POSITION_PLACEMENTS,
    LearnedPositionEmbedding,
    LearnedPositionEmbedding2D,
    SinCosPositionEmbedding,
    SinCosPositionEmbedding2D,
)
from keras_vit.layers.preprocessing import ImagePreprocessor
from keras_vit.layers.relative import (
    RELATIVE_POSITIONS,
    RelativePositionKeys,
    RelativePositionMlp,
    RelativePositionTable,
)
from keras_vit.layers.resize import resize_position_grid
from keras_vit.layers.resnet_stem import (
    STEM_EPSILONS,
    PreActivationUnit,
    ResNetStem,
)
from keras_vit.layers.rotary import (
    ROTARY_POSITIONS,
    AxialRotaryPositions,
    CenteredRotaryPositions,
    ClassRotaryPositions,
    MixedRotaryPositions,
    RoundedRotaryPositions,
)
from keras_vit.layers.tokens import ClassToken, PatchEncoder, PrefixTokens

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "POOLINGS",
    "POSITION_EMBEDDINGS",
    "POSITION_PLACEMENTS",
    "RELATIVE_POSITIONS",
    "ROTARY_POSITIONS",
    "STEM_EPSILONS",
    "AttentionPooling",
    "AveragePooling",
    "AxialRotaryPositions",
    "CenteredRotaryPositions",
    "ClassRotaryPositions",
    "ClassToken",
    "DistilledHead",
    "DistilledPooling",
    "ImagePreprocessor",
    "LayerNorm",
    "LayerScale",
    "LearnedPositionEmbedding",
    "LearnedPositionEmbedding2D",
    "MaxPooling",
    "MixedRotaryPositions",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PatchAttentionPooling",
    "ProbePooling",
    "PatchDropout",
    "PatchEncoder",
    "PreActivationUnit",
    "PrefixTokens",
    "RelativePositionKeys",
    "RelativePositionMlp",
    "RelativePositionTable",
    "ResNetStem",
    "RmsNorm",
    "PrefixPooling",
    "RoundedRotaryPositions",
    "SinCosPositionEmbedding",
    "SinCosPositionEmbedding2D",
    "StochasticDepth",
    "TokenAndAveragePooling",
    "TokenPooling",
    "TransformerBlock",
    "UnitNorm",
    "resize_position_grid",
]
