"""The flags with which the command of a run is repeated."""

import dataclasses
import shlex

from trainers.recipes.flags import flag_fields
from trainers.recipes.photos import FITTED_FIELDS, MEMORY_FIELDS, RULES
from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.runs.run import Run


def explain_repeating(run: Run) -> str:
    """Return how to go on with a run, for a command without --recipe.

    Args:
        run: A run that has begun.
    """
    words = [f"--run_dir={run}", *repeat_flags(run.load_recipe())]
    return (
        "`recipe` must be given to go on with a run, and all other flags that "
        "it was started with. If you do not have that command, try: keras-vit "
        f"train {shlex.join(words)}. Received: recipe=None, "
        f"run_dir={str(run)!r}"
    )


def repeat_flags(recipe: Recipe) -> list[str]:
    """Return flags that give a recipe: --recipe and the fields to change.

    Flags that the training images decide are left out if a run that goes on
    keeps its own.

    Args:
        recipe: The recipe of a run.
    """
    changes = {name: list_differences(recipe, name) for name in RECIPES}

    def distance(name):
        # A flag cannot set a field to None.
        unset = [value for value in changes[name].values() if value is None]
        is_other = RECIPES[name].source != recipe.source
        return len(unset), is_other, len(changes[name])

    name = min(changes, key=distance)
    flags = [write_flag(*pair) for pair in changes[name].items()]
    return [f"--recipe={name}", *filter(None, flags)]


def list_differences(recipe: Recipe, name: str) -> dict:
    """Return the fields of a recipe that differ from one of RECIPES.

    Args:
        recipe: The recipe.
        name: A key of RECIPES.
    """
    kept = ()
    if name in RULES:
        kept = (*FITTED_FIELDS, *MEMORY_FIELDS, "total_steps")
    theirs = dataclasses.asdict(RECIPES[name])
    ours = dataclasses.asdict(recipe)
    names = [field.name for field in flag_fields() if field.name not in kept]
    found = {n: ours[n] for n in names if ours[n] != theirs[n]}
    # A run without a number of updates is given by its epochs.
    if "total_steps" in found and ours["total_steps"] is None:
        del found["total_steps"]
        found["epochs"] = ours["epochs"]
    return found


def write_flag(name: str, value: str | float | bool | None) -> str:
    """Return a flag as it is typed; nothing for None.

    Example:
        >>> write_flag("seed", 3), write_flag("use_xla", False)
        ('--seed=3', '--nouse_xla')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={value}"
