"""The Vision Transformer, its configuration and its intermediate results."""

from keras_vit.models.config import ViTConfig
from keras_vit.models.dense import (
    DenseConfig,
    DensePredictor,
    dense_predictor,
    predict_windows,
)
from keras_vit.models.flexible import (
    FlexibleVisionTransformer,
    cut_patches,
    preprocess_patches,
)
from keras_vit.models.text import TextConfig, TextTransformer
from keras_vit.models.variants import VARIANTS
from keras_vit.models.vit import VisionTransformer

__all__ = [
    "VARIANTS",
    "DenseConfig",
    "DensePredictor",
    "FlexibleVisionTransformer",
    "TextConfig",
    "TextTransformer",
    "ViTConfig",
    "VisionTransformer",
    "cut_patches",
    "dense_predictor",
    "predict_windows",
    "preprocess_patches",
]
