"""What the recipe.json of a run holds: its recipe and its class names."""

import dataclasses
from collections.abc import Mapping

from keras_vit.model_files import check_class_names
from trainers.recipes.recipe import Recipe


def parse_recipe(fields: Mapping) -> Recipe:
    """Return the recipe of a file.

    Args:
        fields: The values by name.

    Raises:
        ValueError: If there are fields of a later version, or a value is not
            allowed.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"`recipe` must be an object. Received: {fields!r}")
    unknown = fields.keys() - {f.name for f in dataclasses.fields(Recipe)}
    if unknown:
        raise ValueError(
            f"fields of another version: {', '.join(sorted(unknown))}"
        )
    recipe = Recipe(**fields)
    recipe.check_operations()
    return recipe


def take_class_names(
    content: Mapping, num_classes: int | None = None
) -> list[str]:
    """Return the class names in a recipe.json; none for an encoder.

    Args:
        content: The content of the file.
        num_classes: Number of outputs of the model; None if it is not known.

    Raises:
        ValueError: If they are no names, or not one for each logit.
    """
    names = content["class_names"]
    if not parse_recipe(content["recipe"]).needs_labels:
        num_classes = 0
    elif names == []:
        raise ValueError(
            "`class_names` must not be empty for a classifier. Received: []"
        )
    return check_class_names(names, num_classes)
