"""The values that a recipe gives the flags of `train`."""

import warnings
from typing import NamedTuple

from trainers.data.file_lists import FILE_LISTS, LIST_NAMES, is_file_list
from trainers.data.split_names import TRAIN_SPLITS, find_split
from trainers.recipes.photo_rules import (
    FITTED_FIELDS,
    MEMORY_FIELDS,
    RULES,
    choose_settings,
)
from trainers.recipes.vtab_rules import fit_to_task


class RecipeValues(NamedTuple):
    """What the flags of a training would be.

    Args:
        recipe: Name of the recipe; None if none is chosen.
        title: Says which values these are.
        values: The values, by flag.
        notes: What is said of a flag instead of its value, by flag.
    """

    recipe: str | None
    title: str
    values: dict
    notes: dict


def find_values(
    recipes: dict[str, dict], defaults: dict, given: dict
) -> RecipeValues:
    """Return the values of the flags of `train` for a command line.

    Args:
        recipes: The values of each recipe that are not the default ones.
        defaults: The default values of the flags.
        given: The flags of the command line.
    """
    dataset = given.get("dataset", "")
    name = given.get("recipe")
    if name is None and is_file_list(dataset):
        name = "photos"
    if name not in recipes:
        return RecipeValues(None, NO_RECIPE, defaults, {})
    values = {**defaults, **recipes[name], "recipe": name}
    if "epochs" in given:
        values["total_steps"] = None
    values |= fit_to_task(name, given)
    title = f"In brackets: the values of the recipe {name}"
    if name not in RULES:
        return RecipeValues(name, f"{title}.", values, {})
    by_memory = dict.fromkeys(MEMORY_FIELDS, "follows from the memory")
    notes = dict.fromkeys(FITTED_FIELDS, "follows from the number of images")
    if dataset:
        try:
            number = count_images(dataset, given.get("train_split"))
        except (ValueError, OSError) as error:
            title = f"{title}. No images were counted: {error}"
        else:
            title = f"{title} for {number:,} training images"
            values |= choose_settings(
                name,
                number,
                is_pretrained=bool(values["init_from"]),
                image_size=values["image_size"],
                given=given,
            )
            notes = {}
    notes = {k: x for k, x in (notes | by_memory).items() if k not in given}
    return RecipeValues(name, f"{title.rstrip('.')}.", values, notes)


def count_images(dataset: str, split: str | None) -> int:
    """Return the number of training images of a list of image files.

    Args:
        dataset: A data set of FILE_LISTS, as KIND:PATH.
        split: The training split, if it is not the default one.

    Raises:
        ValueError: If it is another data set or split, or has no images.
        OSError: If a file cannot be read.
    """
    kind, _, path = dataset.partition(":")
    if kind not in FILE_LISTS:
        raise ValueError(
            f"`dataset` must be {LIST_NAMES}. Received: dataset={dataset!r}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About files that are left out.
        files = FILE_LISTS[kind].list_files(path)
    split = split or find_split(files, TRAIN_SPLITS)
    if not files.get(split):
        raise ValueError(
            "`train_split` must be the name of a split of the data set. "
            f"Received: train_split={split!r}"
        )
    return len(files[split])


NO_RECIPE = (
    "In brackets: the values of recipes that set no other. To see those of a "
    "recipe, add --recipe=NAME; for your own photos, --dataset=folder:PATH."
)
