"""RECIPES: all recipes by name. Each paper has its own file of recipes."""

from trainers.recipes import (
    augreg,
    bit,
    digits,
    photos,
    plain_vit,
    pre_training,
    resnet,
    self_supervised,
    small_images,
    vit,
)

# `weight_decay` is that of Keras, multiplied by the learning rate;
# docs/recipes.md says how it compares to the figures of the sources.
RECIPES = {
    **photos.RECIPES,
    **digits.RECIPES,
    **small_images.RECIPES,
    **vit.RECIPES,
    **pre_training.RECIPES,
    **augreg.RECIPES,
    **plain_vit.RECIPES,
    **bit.RECIPES,
    **resnet.RECIPES,
    **self_supervised.RECIPES,
}
