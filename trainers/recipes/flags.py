"""The command-line flags of a recipe: --recipe and one for each field."""

import dataclasses
import typing

from absl import flags

from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe


def flag_fields() -> list[dataclasses.Field]:
    """Return the fields of Recipe that are flags."""
    return [f for f in dataclasses.fields(Recipe) if "help" in f.metadata]


def define_recipe_flags():
    """Define --recipe and one absl flag for each field of Recipe."""
    flags.DEFINE_enum(
        "recipe",
        "digits",
        list(RECIPES),
        "Recipe that gives the defaults of the flags below.",
    )
    types = typing.get_type_hints(Recipe)
    for field in flag_fields():
        text = f"{field.metadata['help']} Default: that of the recipe."
        choices = field.metadata["choices"]
        if choices:
            flags.DEFINE_enum(field.name, None, choices, text)
            continue
        kinds = set(typing.get_args(types[field.name])) or {types[field.name]}
        define = {
            str: flags.DEFINE_string,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
            bool: flags.DEFINE_bool,
        }[(kinds - {type(None)}).pop()]
        define(field.name, None, text)


def recipe_from_flags(values: flags.FlagValues = flags.FLAGS) -> Recipe:
    """Return the recipe of --recipe, changed by the flags that were given."""
    given = {
        field.name: values[field.name].value
        for field in flag_fields()
        if values[field.name].value is not None
    }
    if "epochs" in given and "total_steps" not in given:
        given["total_steps"] = None
    return dataclasses.replace(RECIPES[values.recipe], **given)
