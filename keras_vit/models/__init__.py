"""The Vision Transformer, its configuration and its builders."""

from keras_vit.models.builders import BUILDERS
from keras_vit.models.variants import VARIANTS, ViTConfig
from keras_vit.models.vision_transformer import VisionTransformer

__all__ = ["BUILDERS", "VARIANTS", "ViTConfig", "VisionTransformer"]
