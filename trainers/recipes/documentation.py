"""The table of recipes in docs/recipes.md, generated from RECIPES."""

import pathlib
import re

from keras_vit.tables import format_table
from trainers.recipes.recipes import RECIPES


def describe_recipes() -> str:
    """Return RECIPES as a Markdown table, that of docs/recipes.md."""
    columns = "recipe model data pixels length batch rate source expected"
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
                recipe.source,
                recipe.expected,
            ]
        )
    return format_table(columns.split(), rows) + "\n"


def update_page(path: str):
    """Replace the table of recipes in a Markdown page by that of RECIPES.

    Raises:
        ValueError: If there is no such table in the page.
    """
    page, table = pathlib.Path(path), describe_recipes()
    header = table.splitlines()[0]
    text, count = re.subn(
        rf"^{re.escape(header)}\n(?:\|.*\n)*",
        lambda match: table,
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    if not count:
        raise ValueError(
            "`path` must be a page with a table that begins with "
            f"{header!r}. Received: path={path!r}"
        )
    page.write_text(text, encoding="utf-8")
