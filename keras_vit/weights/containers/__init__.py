"""Checkpoint files as named arrays, with one module for each container."""

from keras_vit.weights.containers.checkpoint import (
    Checkpoint,
    Entry,
    errors_name,
)
from keras_vit.weights.containers.descriptions import read_json, write_json
from keras_vit.weights.containers.npz import write_npz
from keras_vit.weights.containers.opening import CONTAINERS, open_checkpoint
from keras_vit.weights.containers.safetensors import write_safetensors

__all__ = [
    "CONTAINERS",
    "Checkpoint",
    "Entry",
    "errors_name",
    "open_checkpoint",
    "read_json",
    "write_json",
    "write_npz",
    "write_safetensors",
]
