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
    theirs = _read_beside(recipe.init_from, "class_names", list)
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
    theirs = _read_beside(recipe.init_from, "recipe", dict).get("image_size")
    if theirs in (None, recipe.image_size):
        return None
    return (
        f"{recipe.init_from} was trained on images of {theirs}x{theirs} "
        f"pixels, and this run has {recipe.image_size}x{recipe.image_size}. "
        f"To keep the size: --image_size={theirs}"
    )


def _read_beside(path, name, kind):
    """Return an entry of recipe.json beside a file or in the folder of a run.

    An empty one, if there is none of this kind.
    """
    path = find_model_file(path) if path else ""
    file = as_path(path).parent / RUN_RECIPE if path else None
    if not path.endswith(".keras") or not file.is_file():
        return kind()
    try:
        entry = json.loads(file.read_text())[name]
    except (KeyError, TypeError, ValueError):
        return kind()
    return entry if isinstance(entry, kind) else kind()
