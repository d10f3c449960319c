"""Training with patches of several sizes, as in FlexiViT."""

import dataclasses

import keras

from keras_vit.models import FlexibleVisionTransformer, VisionTransformer
from trainers.recipes.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class FixedPatchSize:
    """A flexible model that cuts all images into patches of one size.

    Args:
        flexible: The model.
        patch_size: Side of a patch in pixels.
    """

    flexible: FlexibleVisionTransformer
    patch_size: int

    def __call__(self, images, training=False):
        return self.flexible(
            images, patch_size=self.patch_size, training=training
        )

    def stateless_call(self, *arguments, **options):
        """Call the flexible model with patches of this size."""
        return self.flexible.stateless_call(
            *arguments, patch_size=self.patch_size, **options
        )


def with_patch_size(model: keras.Model, patch_size: int | None) -> keras.Model:
    """Return a model with patches of another size, for the same images.

    Args:
        model: The model.
        patch_size: Side of a patch in pixels; None for that of the model.

    Raises:
        ValueError: If the model is not a VisionTransformer, or its images are
            not a whole number of these patches.
    """
    if patch_size is None:
        return model
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            "`patch_size` needs a VisionTransformer. Received: "
            f"patch_size={patch_size}, model={model.name!r}"
        )
    return model.with_image_size(model.config.image_size, patch_size)


def make_variants(
    recipe: Recipe, model: keras.Model
) -> tuple[FixedPatchSize, ...]:
    """Return the model with each of the patch sizes of a recipe.

    Args:
        recipe: The recipe.
        model: The model to train, whose weights all have.

    Raises:
        ValueError: If the model cannot have patches of several sizes, or an
            image is smaller than a patch.

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.3.
    """
    sizes = recipe.patch_size_list
    if not sizes:
        return ()
    if max(sizes) > recipe.image_size:
        raise ValueError(
            "`patch_sizes` must be at most the side of the images. Received: "
            f"patch_sizes={recipe.patch_sizes!r}, "
            f"image_size={recipe.image_size}"
        )
    try:
        flexible = FlexibleVisionTransformer(model)
    except ValueError as error:
        raise ValueError(f"`patch_sizes` cannot be used: {error}") from None
    return tuple(FixedPatchSize(flexible, size) for size in sizes)
