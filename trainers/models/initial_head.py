"""What a run should know of the run that its initial model is from."""

import json
from collections.abc import Sequence

from keras_vit.run_folders import RUN_RECIPE
from trainers.models.keras_files import find_model_file
from trainers.paths import as_path
from trainers.recipes.schema import Recipe


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
    """
    theirs = _read_beside(recipe.init_from).get("class_names")
    if recipe.init_head == "reset" or not theirs or not class_names:
        return None
    if len(theirs) != len(class_names) or theirs == list(class_names):
        return None
    return (
        f"The head of {recipe.init_from} is for other classes "
        f"({', '.join(theirs[:5])}{', ...' if len(theirs) > 5 else ''}): a new "
        "one is trained in its place."
    )


def explain_other_size(recipe: Recipe) -> str | None:
    """Return that the images have another size than those of `init_from`.

    Args:
        recipe: The recipe of the new run.

    Returns:
        A sentence; None if the sizes are equal, or no run beside the file
        says what its size was.
    """
    theirs = _read_beside(recipe.init_from).get("recipe", {}).get("image_size")
    if theirs in (None, recipe.image_size):
        return None
    return (
        f"{recipe.init_from} was trained on images of {theirs}x{theirs} "
        f"pixels, and this run has {recipe.image_size}x{recipe.image_size}. "
        f"To keep the size: --image_size={theirs}"
    )


def _read_beside(path):
    """Return what recipe.json says beside a file or in the folder of a run."""
    path = find_model_file(path) if path else ""
    if not path.endswith(".keras"):
        return {}
    file = as_path(path).parent / RUN_RECIPE
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text())
    except ValueError:
        return {}
    kinds = {"class_names": list, "recipe": dict}
    return {
        name: content[name]
        for name, kind in kinds.items()
        if isinstance(content, dict) and isinstance(content.get(name), kind)
    }
