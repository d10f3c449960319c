"""The layers of a Vision Transformer."""

from keras_vit.layers.activations import ACTIVATIONS
from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.axial_rotary_positions import AxialRotaryPositions
from keras_vit.layers.centered_rotary_positions import CenteredRotaryPositions
from keras_vit.layers.class_rotary_positions import ClassRotaryPositions
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.distilled_head import DistilledHead
from keras_vit.layers.image_preprocessor import ImagePreprocessor
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.learned_position_embedding import LearnedPositionEmbedding
from keras_vit.layers.learned_position_embedding_2d import (
    LearnedPositionEmbedding2D,
)
from keras_vit.layers.mixed_rotary_positions import MixedRotaryPositions
from keras_vit.layers.mlp_block import MlpBlock
from keras_vit.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_vit.layers.norms import NORMS
from keras_vit.layers.patch_attention_pooling import PatchAttentionPooling
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.pooling import (
    POOLINGS,
    AveragePooling,
    DistilledPooling,
    MaxPooling,
    PrefixPooling,
    TokenAndAveragePooling,
    TokenPooling,
)
from keras_vit.layers.position_grid import resize_position_grid
from keras_vit.layers.position_kinds import (
    POSITION_EMBEDDINGS,
    POSITION_PLACEMENTS,
)
from keras_vit.layers.pre_activation_unit import PreActivationUnit
from keras_vit.layers.prefix_tokens import PrefixTokens
from keras_vit.layers.probe_pooling import ProbePooling
from keras_vit.layers.relative_positions import (
    RELATIVE_POSITIONS,
    RelativePositionKeys,
    RelativePositionMlp,
    RelativePositionTable,
)
from keras_vit.layers.resnet_stem import ResNetStem
from keras_vit.layers.rms_norm import RmsNorm
from keras_vit.layers.rotary_kinds import ROTARY_POSITIONS
from keras_vit.layers.rounded_rotary_positions import RoundedRotaryPositions
from keras_vit.layers.sincos_position_embedding import SinCosPositionEmbedding
from keras_vit.layers.sincos_position_embedding_2d import (
    SinCosPositionEmbedding2D,
)
from keras_vit.layers.stem_epsilons import STEM_EPSILONS
from keras_vit.layers.stochastic_depth import StochasticDepth
from keras_vit.layers.transformer_block import TransformerBlock

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
    "resize_position_grid",
]
