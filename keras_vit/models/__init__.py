"""The Vision Transformer, its configuration and its intermediate results."""

from keras_vit.models.config import ViTConfig
from keras_vit.models.flexible_vision_transformer import (
    FlexibleVisionTransformer,
)
from keras_vit.models.patch_sequences import cut_patches, preprocess_patches
from keras_vit.models.variants import VARIANTS
from keras_vit.models.vision_transformer import VisionTransformer

__all__ = [
    "VARIANTS",
    "FlexibleVisionTransformer",
    "ViTConfig",
    "VisionTransformer",
    "cut_patches",
    "preprocess_patches",
]
