"""The Vision Transformer (Dosovitskiy et al. 2021) for Keras 3."""

from keras_vit import layers, models
from keras_vit.models import BUILDERS, VARIANTS, VisionTransformer, ViTConfig
from keras_vit.preprocessing import decode_predictions, preprocess_input
from keras_vit.version import __version__

globals().update(BUILDERS)

__all__ = [
    "VARIANTS",
    "ViTConfig",
    "VisionTransformer",
    "__version__",
    "decode_predictions",
    "layers",
    "models",
    "preprocess_input",
    *BUILDERS,
]
