"""Weights: reading, loading, writing and downloading checkpoints."""

from keras_vit.layers.resize import RESIZES
from keras_vit.weights.dense import dense_from_checkpoint, load_dense_head
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.hub import HUB_MODELS, PRETRAINED
from keras_vit.weights.lora import load_lora, save_lora
from keras_vit.weights.read import (
    LoadReport,
    from_checkpoint,
    load_checkpoint,
    read_preprocessing,
    text_from_checkpoint,
)
from keras_vit.weights.write import save_checkpoint

__all__ = [
    "LAYOUTS",
    "LoadReport",
    "HUB_MODELS",
    "PRETRAINED",
    "RESIZES",
    "dense_from_checkpoint",
    "from_checkpoint",
    "load_checkpoint",
    "load_dense_head",
    "load_lora",
    "read_preprocessing",
    "save_checkpoint",
    "save_lora",
    "text_from_checkpoint",
]
