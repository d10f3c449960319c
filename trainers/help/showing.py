"""Answering --help and mistyped flags, before anything slow is imported.

Those of the commands in keras_vit are answered by `keras_vit.startup`.
"""

import os
import sys
from collections.abc import Sequence

from trainers.help.commands import COMMANDS
from trainers.help.help_text import format_help
from trainers.help.reading import HELP_WORDS, read_given, read_help
from trainers.help.recipe_values import RecipeValues, find_values


def answer_early(module: str, words: Sequence[str]):
    """Print the help of a command, or what is mistyped, and exit.

    Otherwise return.

    Args:
        module: The module of the command.
        words: Its command line, without the module.
    """
    names = [name for name, row in COMMANDS.items() if row.module == module]
    wanted = [word for word in words if word in HELP_WORDS]
    if names and wanted:
        page = make_page(names[0], words, wanted[0].endswith("full"))
        print_page(page)
        sys.exit()
    if names and module.startswith("trainers."):
        from trainers.help.mistyped import find_mistyped  # absl takes a while.

        command = read_help()["commands"][names[0]]
        rows, aliases = list_flags(command), command["aliases"]
        fault = find_mistyped(words, rows, aliases)
        if fault:
            sys.exit(f"Error: {fault}")


def print_page(page: str):
    """Print a page, of which a program such as `head` may read a part."""
    try:
        print(page, flush=True)
    except BrokenPipeError:
        # Or Python, too, would complain when it ends and empties its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def list_flags(command: dict) -> dict[str, dict]:
    """Return the descriptions of the flags of a command, by name.

    Args:
        command: Its entry in the file that --help reads.
    """
    parts = command["flags"].values()
    return {flag: row for part in parts for flag, row in part.items()}


def make_page(name: str, words: Sequence[str], is_full: bool = False) -> str:
    """Return the help of a command.

    Args:
        name: A key of COMMANDS.
        words: The command line, whose values are shown.
        is_full: Whether to show the whole help of each flag.
    """
    content = read_help()
    command = content["commands"][name]
    rows = list_flags(command)
    defaults = {flag: row["default"] for flag, row in rows.items()}
    given = read_given(words, rows)
    recipes = content["recipes"] if "recipe" in rows else {}
    values = RecipeValues(None, DEFAULTS, {**defaults, **given}, {})
    if recipes:
        values = find_values(recipes, defaults, given)
    return format_help(name, command, recipes, values, is_full)


DEFAULTS = "In brackets: the default values."
