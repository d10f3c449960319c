"""RECIPES: all recipes by name, and their tables in docs/recipes.md.

Each paper has its own file of recipes.
"""

import pathlib
import re

from keras_vit.tables import format_table
from trainers.recipes import (
    augreg,
    dense,
    photos,
    plain_vit,
    resnets,
    self_supervised,
    small_images,
    vit,
)

# `weight_decay` is that of Keras, multiplied by the learning rate;
# docs/recipes.md says how it compares to the figures of the sources.
RECIPES = {
    **photos.RECIPES,
    **small_images.RECIPES,
    **vit.RECIPES,
    **augreg.RECIPES,
    **plain_vit.RECIPES,
    **resnets.RECIPES,
    **self_supervised.RECIPES,
    **dense.RECIPES,
}


def describe_settings() -> str:
    """Return the settings of RECIPES as a Markdown table."""
    columns = ["recipe", "model", "data", "pixels", "length", "batch", "rate"]
    rows = []
    for name, recipe in RECIPES.items():
        length = f"{recipe.epochs:g} epochs"
        if recipe.total_steps:
            length = f"{recipe.total_steps:,} updates"
        rows.append(
            [
                f"`{name}`",
                f"`{recipe.init_from or recipe.model}`",
                f"`{recipe.dataset}`",
                str(recipe.image_size),
                length,
                str(recipe.batch_size),
                f"{recipe.learning_rate:g}",
            ]
        )
    return format_table(columns, rows) + "\n"


def describe_sources() -> str:
    """Return sources and expected results of RECIPES as a Markdown table."""
    rows = [
        [f"`{name}`", recipe.source, recipe.expected]
        for name, recipe in RECIPES.items()
    ]
    return format_table(["recipe", "source", "expected"], rows) + "\n"


def update_page(path: str):
    """Replace the tables of recipes in a Markdown page by those of RECIPES.

    Raises:
        ValueError: If one of the tables is not in the page.
    """
    page = pathlib.Path(path)
    text = page.read_text(encoding="utf-8")
    for table in (describe_settings(), describe_sources()):
        header = table.splitlines()[0]
        text, count = re.subn(
            rf"^{re.escape(header)}\n(?:\|.*\n)*",
            lambda match, table=table: table,
            text,
            flags=re.MULTILINE,
        )
        if not count:
            raise ValueError(
                "`path` must be a page with a table that begins with "
                f"{header!r}. Received: path={path!r}"
            )
    page.write_text(text, encoding="utf-8")
