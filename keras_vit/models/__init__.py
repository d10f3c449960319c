"""The Vision Transformer, its configuration and its intermediate results."""

from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.models.vision_transformer import VisionTransformer

__all__ = ["VARIANTS", "ViTConfig", "VisionTransformer"]
