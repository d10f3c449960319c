"""The Vision Transformer (Dosovitskiy et al. 2021) for Keras 3."""

# First: it quiets the start of TensorFlow, which the others import.
from keras_vit import startup  # noqa: F401

# isort: split
from keras_vit import analysis, layers, models, weights
from keras_vit.applications import (
    R26_ViT_B32,
    R26_ViT_S32,
    R50_ViT_B16,
    R50_ViT_L32,
    R_ViT_Ti16,
    ViT_B8,
    ViT_B16,
    ViT_B32,
    ViT_G14,
    ViT_g14,
    ViT_H14,
    ViT_L16,
    ViT_L32,
    ViT_M16,
    ViT_S16,
    ViT_S32,
    ViT_So400m14,
    ViT_Ti16,
)
from keras_vit.models import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.preprocessing import decode_predictions, preprocess_input
from keras_vit.version import __version__
from keras_vit.weights import (
    PRETRAINED,
    from_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

__all__ = [
    "PRETRAINED",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "VARIANTS",
    "ViTConfig",
    "ViT_B16",
    "ViT_B32",
    "ViT_B8",
    "ViT_G14",
    "ViT_H14",
    "ViT_L16",
    "ViT_L32",
    "ViT_M16",
    "ViT_S16",
    "ViT_S32",
    "ViT_So400m14",
    "ViT_Ti16",
    "ViT_g14",
    "VisionTransformer",
    "__version__",
    "analysis",
    "decode_predictions",
    "from_checkpoint",
    "layers",
    "load_checkpoint",
    "models",
    "preprocess_input",
    "save_checkpoint",
    "weights",
]
