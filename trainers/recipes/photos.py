"""Recipes for your own photos: the settings follow from their number."""

import dataclasses
import shlex

from trainers.recipes.photo_rules import (
    FITTED_FIELDS,
    MEMORY_FIELDS,
    choose_settings,
)
from trainers.recipes.schema import Recipe


def fit_to_images(
    name: str,
    recipe: Recipe,
    given: dict,
    num_images: int,
    num_replicas: int = 1,
) -> Recipe:
    """Return a recipe with the settings that suit a number of images.

    Args:
        name: Name of the recipe, a key of RULES.
        recipe: The recipe, changed by the flags that were given.
        given: The values of those flags, which stay.
        num_images: Number of training images.
        num_replicas: Number of replicas that share a batch.
    """
    settings = choose_settings(
        name,
        num_images,
        is_pretrained=bool(recipe.init_from),
        image_size=recipe.image_size,
        given=given,
        num_replicas=num_replicas,
    )
    return dataclasses.replace(recipe, **settings)


def describe_fit(recipe: Recipe, num_images: int) -> str:
    """Return a line with the settings that follow from images and memory."""
    fields = dict.fromkeys(FITTED_FIELDS)
    if recipe.total_steps:
        fields["total_steps"] = fields.pop("epochs")
    for name in MEMORY_FIELDS:
        if getattr(recipe, name) != getattr(Recipe, name):
            fields[name] = None
    settings = (
        shlex.quote(f"--{name}={getattr(recipe, name)}") for name in fields
    )
    return f"Settings for {num_images:,} training images: {' '.join(settings)}"


_PHOTOS = Recipe(
    source="This project; rules in recipes/photo_rules.py.",
    expected="Depends on the photos.",
    dataset="folder:photos",
    model="Ti/16",
    weight_decay=0.05,
    label_smoothing=0.1,
    class_weights="balanced",
    keep_best=True,
    patience=10,
)
_PARTS = dataclasses.replace(_PHOTOS, init_from="S/16-augreg")

# The settings that follow from the number of images are those for 1,000.
RECIPES = {
    name: fit_to_images(name, recipe, given={}, num_images=1000)
    for name, recipe in {
        "photos": _PHOTOS,
        "photos_lora": dataclasses.replace(_PARTS, lora_rank=8),
        "photos_linear": dataclasses.replace(_PARTS, train_only="head"),
    }.items()
}
