"""The text of --help."""

import textwrap

from trainers.help.commands import COMMANDS
from trainers.help.recipe_values import RecipeValues

WIDTH = 80
INDENT = "      "
VALUE_COLUMN = 36
MOST_SHOWN = 24  # Characters of the choices in the name of a flag.


def format_help(
    name: str,
    content: dict,
    recipes: dict[str, dict],
    values: RecipeValues,
    is_full: bool,
) -> str:
    """Return the help of a command.

    Args:
        name: A key of COMMANDS.
        content: What `collecting.collect_command` collected.
        recipes: The values of the recipes; empty for other commands than
            `train`.
        values: The values to show.
        is_full: Whether to show the whole help of each flag, not only its
            first sentence.
    """
    command = COMMANDS[name]
    usage = f"{name} [--FLAG=VALUE ...] {command.arguments}".rstrip()
    lines = [
        command.purpose,
        "",
        f"Usage: keras-vit {usage}",
        f"   or: python -m {command.module} ...",
    ]
    if content["examples"]:
        lines += ["", "Example:", *(f"  {x}" for x in content["examples"])]
    if recipes and values.recipe is None:
        lines += ["", "Recipes:", *format_recipes(recipes, values.values)]
    lines += ["", *wrap(values.title, "", "")]
    for subject, rows in content["flags"].items():
        lines += ["", f"{subject}:"]
        for flag, row in rows.items():
            lines += format_flag(flag, row, values, is_full)
    if not is_full:
        lines += ["", "--helpfull says more of each flag."]
    return "\n".join(lines)


def format_flag(
    name: str, row: dict, values: RecipeValues, is_full: bool
) -> list[str]:
    """Return the lines of a flag: its name, kind, value and help.

    Args:
        name: Name of the flag.
        row: What `collecting.describe_row` returned.
        values: The values to show.
        is_full: See `format_help`.
    """
    choices = row.get("choices", ())
    listed = "|".join(choices)
    is_short = 0 < len(listed) <= MOST_SHOWN
    kind = listed if is_short else row["kind"]
    head = f"  --{name}={kind}".removesuffix("=")
    if kind == "switch":
        head = f"  --[no]{name}"
    note = values.notes.get(name) or show_value(values.values[name], row)
    value = f"[{note}]"
    line = f"{head:<{VALUE_COLUMN - 2}}  {value}"
    lines = [line]
    if len(line) > WIDTH:
        lines = [head, *wrap(value)]
    text = row["text"]
    if not is_full:
        text = text.split(". ")[0].removesuffix(".") + "."
    lines += wrap(text)
    # The recipes have a list of their own.
    if choices and not is_short and name != "recipe":
        lines += wrap(f"One of {', '.join(choices)}.")
    return lines


def show_value(value, row: dict) -> str:
    """Return a value as it is typed.

    Example:
        >>> show_value(True, {}), show_value(None, {"absent": "measured"})
        ('true', 'measured')
    """
    if value is None:
        return row.get("absent", "none")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) or "none"


def format_recipes(recipes: dict[str, dict], defaults: dict) -> list[str]:
    """Return a line for each recipe: its model and its data set."""
    width = max(map(len, recipes)) + 4
    lines = []
    for name, row in recipes.items():
        row = defaults | row
        text = f"{row['init_from'] or row['model']} on {row['dataset']}"
        lines += wrap(text, f"  {name:<{width - 2}}", " " * width)
    return lines


def wrap(text: str, start: str = INDENT, indent: str = INDENT) -> list[str]:
    """Return a text as indented lines; long words are broken."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
