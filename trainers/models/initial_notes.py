"""Notes on how a run differs from the initial model and from its run."""

import os
from collections.abc import Mapping, Sequence

import keras

from keras_vit.model_files import RUN_MODEL, RUN_RECIPE, check_class_names
from keras_vit.models import VARIANTS, VisionTransformer
from trainers.models.keras_files import find_model_file
from trainers.paths import as_path, parse_object
from trainers.recipes.recipe import Recipe

# Flags that describe a new model, and the fields of its configuration.
MODEL_FLAGS = {
    "depth": "depth",
    "width": "width",
    "mlp_dim": "mlp_dim",
    "num_heads": "num_heads",
    "patch_size": "patch_size",
    "mlp_activation": "activation",
    "position_embedding": "position_embedding",
    "position_placement": "position_placement",
    "relative_positions": "relative_positions",
}
SIZE_FIELDS = ("width", "depth", "mlp_dim", "num_heads", "patch_size")


def explain_ignored_flags(
    given: Mapping, init_from: str | None, model: keras.Model
) -> str | None:
    """Return which flags do not change the model of `init_from`.

    Args:
        given: The values of the flags of a command, by name.
        init_from: That of the recipe, which a flag or its default gives.
        model: The model of the run.

    Returns:
        A sentence; None if the model is as the flags say, or a new one.
    """
    if not init_from or not isinstance(model, VisionTransformer):
        return None
    config = model.config
    ignored = [
        f"--{name}={given[name]} (it is {getattr(config, field)})"
        for name, field in MODEL_FLAGS.items()
        if name in given and given[name] != getattr(config, field)
    ]
    variant = VARIANTS.get(given.get("model"))
    if variant and any(
        getattr(variant.config, n) != getattr(config, n)
        for n in SIZE_FIELDS
        if n not in given  # A size that was given is judged by itself.
    ):
        ignored.insert(0, f"--model={given['model']} (its sizes are others)")
    if not ignored:
        return None
    return (
        f"The model stays that of {init_from}, which these flags do "
        f"not change: {', '.join(ignored)}."
    )


def explain_other_classes(
    recipe: Recipe, class_names: Sequence[str]
) -> str | None:
    """Return why the head of `init_from` is replaced although it would fit.

    A head for as many classes fits, but its logits are of other classes if the
    names are others, or are in another order.

    Args:
        recipe: The recipe of the new run.
        class_names: Those of its data, in the order of the labels.

    Returns:
        A sentence; None if the head is for these classes, is of another size,
        or no run beside the file says what it is for.

    Raises:
        ValueError: If the run beside the file has no valid class names.
    """
    theirs = read_initial_classes(recipe.init_from)
    if recipe.init_head == "reset" or not theirs or not class_names:
        return None
    if len(theirs) != len(class_names) or theirs == list(class_names):
        return None
    return (
        f"The head of {recipe.init_from} is for other classes "
        f"({', '.join(theirs[:5])}{', ...' if len(theirs) > 5 else ''}): a new "
        "one is trained in its place."
    )


def read_initial_classes(
    path: str, num_classes: int | None = None
) -> list[str]:
    """Return the class names of the run that an initial model is from.

    Args:
        path: The value of `init_from`.
        num_classes: Number of logits of the model; None if it is not known.

    Returns:
        The names in the order of the logits; none if there is no run, or its
        model is an encoder.

    Raises:
        ValueError: If they are no names, or not one for each logit.
    """
    file, content = _read_beside(path)
    names = content.get("class_names", [])
    try:
        return check_class_names(names, num_classes if names else None)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def explain_other_size(recipe: Recipe) -> str | None:
    """Return that the images have another size than those of `init_from`.

    Args:
        recipe: The recipe of the new run.

    Returns:
        A sentence; None if the sizes are equal, or no run beside the file
        says what its size was.
    """
    fields = _read_beside(recipe.init_from)[1].get("recipe")
    theirs = fields.get("image_size") if isinstance(fields, dict) else None
    if theirs in (None, recipe.image_size):
        return None
    return (
        f"{recipe.init_from} was trained on images of {theirs}x{theirs} "
        f"pixels, and this run has {recipe.image_size}x{recipe.image_size}. "
        f"To keep the size: --image_size={theirs}"
    )


def _read_beside(path):
    """Return the path and content of recipe.json beside the model of a run.

    An empty content, if there is no such file or it is of no run.
    """
    path = find_model_file(path) if path else ""
    if os.path.basename(path) != RUN_MODEL:
        return None, {}
    file = as_path(os.path.dirname(path)) / RUN_RECIPE
    if not file.is_file():
        return file, {}
    try:
        return file, parse_object(file.read_text(encoding="utf-8"))
    except ValueError:
        return file, {}
