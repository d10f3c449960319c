"""The learning rates that sweeps try."""

import pytest

from trainers.recipes.recipe import Recipe
from trainers.recipes.recipes import RECIPES
from trainers.sweeps.sweeping import GRIDS, HELD_OUT, choose_grid


def test_grids_are_those_of_the_paper():
    """Table 4 and appendix B.1.1 of arXiv:2010.11929."""
    four = (0.001, 0.003, 0.01, 0.03)
    rows = {
        "imagenet_b16": ((0.003, 0.01, 0.03, 0.06), "1%"),
        "cifar10_b16": (four, "2%"),
        "cifar100_b16": (four, "2%"),
        "pets_b16": (four, "10%"),
        "flowers_b16": (four, "10%"),
        "vtab_l16": ((0.01,), "20%"),
    }
    assert {name: tuple(GRIDS[name]) for name in rows} == rows
    for name, grid in GRIDS.items():
        assert RECIPES[name].learning_rate in grid.learning_rates
        assert choose_grid(name, RECIPES[name]) is grid


@pytest.mark.parametrize("name", ["photos", None])
def test_other_recipes_try_rates_around_theirs(name):
    grid = choose_grid(name, Recipe(learning_rate=0.00068))
    assert grid == ((0.00023, 0.00068, 0.002), HELD_OUT)
