"""Learning from images without labels: models around an encoder."""

from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.pretraining.masked_patch_prediction import MaskedPatchPrediction
from keras_vit.pretraining.pretraining_model import (
    PretrainingModel,
    fix_positions,
)
from keras_vit.pretraining.targets import PATCH_TARGETS

__all__ = [
    "PATCH_TARGETS",
    "MaskedAutoencoder",
    "MaskedPatchPrediction",
    "PretrainingModel",
    "fix_positions",
]
