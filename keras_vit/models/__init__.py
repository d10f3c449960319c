"""The Vision Transformer and its configuration; its builders beside it."""

from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.models.vision_transformer import VisionTransformer

__all__ = ["VARIANTS", "ViTConfig", "VisionTransformer"]
