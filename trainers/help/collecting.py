"""Collecting what --help shows of the commands and the recipes into a file.

Example:
    python -m trainers.help.collecting
"""

import argparse
import importlib
import inspect
import json
import re
from types import ModuleType

from absl import flags

from keras_vit.command_lines import PARSERS, parse_port
from keras_vit.files import atomic_write
from trainers.help.commands import COMMANDS
from trainers.help.reading import HELP_PATH
from trainers.help.subjects import SUBJECTS
from trainers.recipes.flags import OF_RECIPE, flag_fields
from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe


def collect_help() -> dict:
    """Return the flags of COMMANDS by subject, and the values of RECIPES.

    Raises:
        ValueError: If a flag has no subject.
    """
    return {
        "commands": {
            name: collect_command(importlib.import_module(row.module))
            for name, row in COMMANDS.items()
        },
        "recipes": {name: collect_values(RECIPES[name]) for name in RECIPES},
    }


def collect_command(module: ModuleType) -> dict:
    """Return what --help shows of a command."""
    rows, aliases = collect_flags(module)
    return {
        "examples": collect_examples(module),
        "flags": order_by_subject(rows),
        "aliases": aliases,
    }


def collect_examples(module: ModuleType) -> list[str]:
    """Return the lines of the section `Example` of a docstring."""
    text = inspect.cleandoc(module.__doc__).partition("\nExample:\n")[2]
    return [line[4:] for line in text.splitlines()]


def order_by_subject(rows: dict[str, dict]) -> dict[str, dict[str, dict]]:
    """Return descriptions of flags in the order of SUBJECTS.

    Raises:
        ValueError: If a flag has no subject.
    """
    known = {name for names in SUBJECTS.values() for name in names}
    unknown = sorted(rows.keys() - known)
    if unknown:
        raise ValueError(
            "SUBJECTS must have the name of each flag. Received: "
            f"{', '.join(unknown)}"
        )
    found = {
        subject: {name: rows[name] for name in names if name in rows}
        for subject, names in SUBJECTS.items()
    }
    return {subject: found[subject] for subject in found if found[subject]}


def collect_flags(module: ModuleType) -> tuple[dict, dict]:
    """Return descriptions of the flags of a command, and its aliases."""
    if module.__name__ in PARSERS:
        return collect_arguments(PARSERS[module.__name__]()), {}
    values = flags.FLAGS
    before = set(values)
    module.define_flags()
    names = set(values) - before
    aliases = {
        name: values[name].help.removeprefix(ALIAS).removesuffix(".")
        for name in sorted(names)
        if values[name].help.startswith(ALIAS)
    }
    rows = {
        name: describe_flag(name, values[name])
        for name in names - aliases.keys()
    }
    for name in names:
        delattr(values, name)
    return rows, aliases


def describe_flag(name: str, flag: flags.Flag) -> dict:
    """Return the kind, the default, the help and the limit of a flag."""
    default, text = flag.default, flag.help
    if isinstance(default, list):
        default = ",".join(default)
    if text.endswith(OF_RECIPE):
        default = getattr(Recipe, name)
        text = text.removesuffix(OF_RECIPE)
    row = describe_row(
        KINDS[flag.flag_type()],
        default,
        re.sub(r"^<.*?>: ", "", text),  # The choices of an enum.
        getattr(flag.parser, "enum_values", None),
        is_required=not all(x.checker(None) for x in flag.validators),
    )
    least = getattr(flag.parser, "lower_bound", None)
    return row if least is None else row | {"least": least}


def collect_arguments(parser: argparse.ArgumentParser) -> dict[str, dict]:
    """Return descriptions of the flags of a parser."""
    return {
        action.option_strings[0].removeprefix("--"): describe_option(action)
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    }


def describe_option(action: argparse.Action) -> dict:
    """Return the kind, the default and the help of a flag of argparse."""
    text = f"{action.help[0].upper()}{action.help[1:]}."
    text = re.sub(r" \(default: (.*)\)\.$", r". Default: \1.", text)
    kind = "" if action.nargs == 0 else KINDS.get(action.type, "TEXT")
    default = None if action.default == [] else action.default
    return describe_row(kind, default, text, action.choices, action.required)


def describe_row(kind, default, text, choices, is_required) -> dict:
    """Return a row of the file; the text says what None stands for."""
    text, _, absent = text.partition(" Default: ")
    kind = "NAME" if choices else kind
    row = {"kind": kind, "default": default, "text": text}
    absent = "required" if is_required else absent
    if absent and default is None:
        row["absent"] = absent.removesuffix(".")
    if choices:
        row["choices"] = list(choices)
    return row


def collect_values(recipe: Recipe) -> dict:
    """Return the values of a recipe that are not the default ones."""
    return {
        field.name: getattr(recipe, field.name)
        for field in flag_fields()
        if getattr(recipe, field.name) != field.default
    }


def write_help():
    """Write HELP_PATH."""
    with atomic_write(HELP_PATH) as draft:
        draft.write_text(json.dumps(collect_help(), indent=1) + "\n")


ALIAS = "Alias for --"  # The help of an alias begins so in absl.
# How --help calls the types of absl and of argparse.
KINDS = {
    "string": "TEXT",
    "string enum": "NAME",
    "comma separated list of strings": "LIST",
    "int": "INTEGER",
    "float": "NUMBER",
    "bool": "switch",
    int: "INTEGER",
    parse_port: "INTEGER",
    float: "NUMBER",
}


if __name__ == "__main__":
    write_help()
