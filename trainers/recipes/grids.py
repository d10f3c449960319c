"""GRIDS: the learning rates of a sweep for the recipes of a paper."""

from typing import NamedTuple

from trainers.recipes.schema import Recipe


class Grid(NamedTuple):
    """The learning rates of a sweep, and the images that choose among them.

    Args:
        learning_rates: The highest learning rate of each run.
        held_out: Share or number of training images, see `hold_out`.
    """

    learning_rates: tuple[float, ...]
    held_out: str


# Other recipes try this many times their learning rate.
FACTORS = (1 / 3, 1, 3)
HELD_OUT = "10%"


def choose_grid(name: str | None, recipe: Recipe) -> Grid:
    """Return the grid of a recipe, or one around its learning rate.

    Args:
        name: A key of RECIPES, if the recipe has a name.
        recipe: The recipe, perhaps changed by flags.

    Example:
        >>> choose_grid(None, Recipe(learning_rate=0.003)).learning_rates
        (0.001, 0.003, 0.009)
    """
    if name in GRIDS:
        return GRIDS[name]
    rates = [float(f"{x * recipe.learning_rate:.2g}") for x in FACTORS]
    return Grid(tuple(rates), HELD_OUT)


# arXiv:2010.11929, table 4 and appendix B.1.1.
_IMAGENET = Grid((0.003, 0.01, 0.03, 0.06), "1%")
_CIFAR = Grid((0.001, 0.003, 0.01, 0.03), "2%")
_PETS = Grid((0.001, 0.003, 0.01, 0.03), "10%")

GRIDS = {
    "imagenet_b16": _IMAGENET,
    "imagenet_l16_512": _IMAGENET,
    "imagenet_h14_518": _IMAGENET,
    "cifar10_b16": _CIFAR,
    "cifar100_b16": _CIFAR,
    "pets_b16": _PETS,
    "flowers_b16": _PETS,
    # One rate for all tasks, and 200 of the 1,000 images.
    "vtab_l16": Grid((0.01,), "20%"),
}
