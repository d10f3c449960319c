"""The models that learn without labels, around the encoder of a recipe."""

import keras

from keras_vit.models import VisionTransformer
from keras_vit.pretraining import (
    MaskedAutoencoder,
    MaskedPatchPrediction,
    PretrainingModel,
    fix_positions,
)
from trainers.data.datasets import ImageDataset
from trainers.recipes.recipe import MASK_RATIOS, Recipe


def add_objective(encoder: VisionTransformer, recipe: Recipe) -> keras.Model:
    """Return the model to train: the encoder itself, or one around it.

    Raises:
        ValueError: If the encoder cannot learn without labels.
    """
    if recipe.needs_labels:
        return encoder
    if not isinstance(encoder, VisionTransformer):
        raise ValueError(
            f"`objective` {recipe.objective!r} needs a VisionTransformer. "
            f"Received: init_from={recipe.init_from!r}, a {encoder.name}"
        )
    return MODELS_OF_OBJECTIVES[recipe.objective](encoder, recipe)


def class_names_of(recipe: Recipe, dataset: ImageDataset) -> list[str]:
    """Return the classes that the model learns; none without labels."""
    return dataset.class_names if recipe.needs_labels else []


def _masked_patches(encoder, recipe):
    ratio = recipe.mask_ratio or MASK_RATIOS["masked_patches"]
    return MaskedPatchPrediction(encoder, ratio, recipe.patch_target)


def _autoencoder(encoder, recipe):
    if not recipe.init_from:
        fix_positions(encoder)
    return MaskedAutoencoder(
        encoder,
        recipe.mask_ratio or MASK_RATIOS["autoencoder"],
        decoder_width=recipe.decoder_width,
        decoder_depth=recipe.decoder_depth,
        decoder_heads=recipe.decoder_heads,
        normalize_pixels=recipe.normalize_pixels,
    )


def plain_encoder(model: PretrainingModel) -> VisionTransformer:
    """Return a copy of the encoder of a model, all of it trainable."""
    encoder = model.encoder.merge_lora()  # A copy: the run may go on.
    encoder.unfreeze()
    return encoder


def loss_and_hits(model: PretrainingModel) -> tuple:
    """Return the functions `loss` and `hits` of a `Step` for a model."""

    def loss(labels, outputs):
        return model.compute_losses(outputs)

    def hits(labels, outputs):
        return model.compute_hits(outputs)

    return loss, hits if model.has_hits else None


MODELS_OF_OBJECTIVES = {
    "masked_patches": _masked_patches,
    "autoencoder": _autoencoder,
}
