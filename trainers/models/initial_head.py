"""Whether the head of an initial model is one for the classes of the data."""

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
    theirs = _names_beside(recipe.init_from) if recipe.init_from else None
    if recipe.init_head == "reset" or theirs is None or not class_names:
        return None
    if len(theirs) != len(class_names) or theirs == list(class_names):
        return None
    return (
        f"The head of {recipe.init_from} is for other classes "
        f"({', '.join(theirs[:5])}{', ...' if len(theirs) > 5 else ''}): a new "
        "one is trained in its place."
    )


def _names_beside(path):
    """Return the classes of the run that is named or holds a file, or None."""
    path = find_model_file(path)
    if not path.endswith(".keras"):
        return None
    file = as_path(path).parent / RUN_RECIPE
    if not file.is_file():
        return None
    try:
        names = json.loads(file.read_text())["class_names"]
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and names else None
