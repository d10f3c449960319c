import collections
import re

import pytest

from keras_vit.command_lines import PARSERS
from trainers.help.collecting import collect_help, order_by_subject
from trainers.help.commands import COMMANDS
from trainers.help.reading import HELP_PATH, read_help
from trainers.help.subjects import SUBJECTS
from trainers.recipes.flags import flag_fields
from trainers.recipes.recipes import RECIPES


def test_the_file_is_that_of_the_code():
    assert read_help() == collect_help(), (
        f"{HELP_PATH.name} is old: python -m trainers.help.collecting"
    )


def test_the_fields_of_a_recipe_are_flags_with_their_values():
    content = read_help()
    parts = content["commands"]["train"]["flags"]
    rows = {k: v for part in parts.values() for k, v in part.items()}
    for name, recipe in RECIPES.items():
        for field in flag_fields():
            value = content["recipes"][name].get(
                field.name, rows[field.name]["default"]
            )
            assert value == getattr(recipe, field.name), (name, field.name)


def test_a_flag_has_one_subject():
    counts = collections.Counter(n for row in SUBJECTS.values() for n in row)
    assert set(counts.values()) == {1}
    used = {
        flag
        for command in read_help()["commands"].values()
        for part in command["flags"].values()
        for flag in part
    }
    assert used == set(counts)


def test_a_flag_without_a_subject_is_named():
    with pytest.raises(ValueError, match="Received: no_such_flag"):
        order_by_subject({"no_such_flag": {}, "seed": {}})


def test_the_arguments_are_those_of_the_parsers():
    """Of the commands that have one."""
    for name, row in COMMANDS.items():
        if row.module in PARSERS:
            usage = PARSERS[row.module]().format_usage().upper()
            for word in re.findall("[A-Z_]+", row.arguments):
                assert f" {word}" in usage.replace("[", " "), name
