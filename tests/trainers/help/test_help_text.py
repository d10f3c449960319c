import re

import pytest

from trainers.help.commands import COMMANDS
from trainers.help.reading import read_help
from trainers.help.showing import make_page
from trainers.recipes.recipes import RECIPES


def values_of(page):
    """Return the brackets after each flag, and the one-line helps."""
    found = re.findall(
        r"^  --(?:\[no\])?(\w+)\S*\s+\[((?:.|\n)*?)\]\n      (.*)", page, re.M
    )
    return {name: " ".join(value.split()) for name, value, _ in found}


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_each_flag_has_a_value_and_a_help_in_80_columns(name, is_full):
    page = make_page(name, [], is_full)
    assert max(map(len, page.splitlines())) <= 80
    values = values_of(page)
    parts = read_help()["commands"][name]["flags"]
    assert list(values) == [flag for part in parts.values() for flag in part]
    for subject in parts:
        assert f"\n\n{subject}:\n  --" in page
    assert f"Usage: keras-vit {name} " in page
    assert "Default: " not in page


@pytest.mark.parametrize("name", RECIPES)
def test_the_values_are_those_of_the_recipe(name):
    page = make_page("train", [f"--recipe={name}"])
    assert max(map(len, page.splitlines())) <= 80
    values = values_of(page)
    recipe = RECIPES[name]
    assert values["recipe"] == name
    assert values["weight_decay"] == f"{recipe.weight_decay:g}"
    assert values["keep_best"] == str(recipe.keep_best).lower()
    assert values["dataset"] == recipe.dataset
    if not name.startswith("photos"):
        assert values["batch_size"] == str(recipe.batch_size)
        assert values["augment"].replace(" ", "") == (
            recipe.augment.replace(" ", "") or "none"
        )


def test_without_a_recipe_they_are_listed():
    page = make_page("train", [])
    for name in RECIPES:
        assert re.search(rf"^  {name}  ", page, re.M)
    assert "Recipes:" not in make_page("train", ["--recipe=digits"])


def test_flags_that_are_given_have_their_values():
    page = make_page("train", ["--recipe=digits", "--epochs=7", "--use_remat"])
    values = values_of(page)
    assert values["epochs"] == "7"
    assert values["use_remat"] == "true"
    assert values["seed"] == "0"
    assert values_of(make_page("evaluate", ["--batch_size=9"]))[
        "batch_size"
    ] == ("9")


def test_what_none_stands_for():
    values = values_of(make_page("train", ["--recipe=digits"]))
    assert values["patience"] == "it does not stop"
    assert values["pooling"] == "that of the variant"
    assert values["total_steps"] == "none"
    assert values_of(make_page("convert", []))["layout"] == "required"


def test_the_full_help_has_every_sentence():
    text = "The parts are computed one after the other"
    assert text not in make_page("train", [])
    assert text in " ".join(make_page("train", [], is_full=True).split())
