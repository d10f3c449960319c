"""The Vision Transformer (Dosovitskiy et al. 2021) for Keras 3."""

# First: they quiet Ctrl-C and the start of TensorFlow, which the others import.
from keras_vit import interrupts, startup  # noqa: F401

# isort: split
from keras_vit import (
    analysis,
    applications,
    distribution,
    layers,
    models,
    pretraining,
    weights,
)
from keras_vit.applications import *  # noqa: F403  ViT_B16 ... of VARIANTS
from keras_vit.layer_decay import layer_decay_optimizer
from keras_vit.models import (
    VARIANTS,
    FlexibleVisionTransformer,
    VisionTransformer,
    ViTConfig,
    preprocess_patches,
)
from keras_vit.preprocessing import (
    Preprocessing,
    decode_predictions,
    preprocess_input,
    read_image,
)
from keras_vit.version import __version__
from keras_vit.weights import (
    HUB_MODELS,
    PRETRAINED,
    from_checkpoint,
    load_checkpoint,
    load_lora,
    save_checkpoint,
    save_lora,
)

__all__ = [
    *applications.BUILDERS,
    "FlexibleVisionTransformer",
    "HUB_MODELS",
    "PRETRAINED",
    "Preprocessing",
    "VARIANTS",
    "ViTConfig",
    "VisionTransformer",
    "__version__",
    "analysis",
    "decode_predictions",
    "distribution",
    "from_checkpoint",
    "layer_decay_optimizer",
    "layers",
    "load_checkpoint",
    "load_lora",
    "models",
    "preprocess_input",
    "preprocess_patches",
    "pretraining",
    "read_image",
    "save_checkpoint",
    "save_lora",
    "weights",
]
