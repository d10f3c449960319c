"""Sweep: a checked sweep, and the cases that its runs train."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trainers.data.datasets import ImageDataset
from trainers.distribute.cluster import WorkerConfig
from trainers.loop.errors import NonFiniteLossError
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipe import Recipe
from trainers.runs.run import Run
from trainers.sweeps.trials import CHOICE, REPORT, Case, Trial, best_rate


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

# arXiv:2010.11929, table 4 and appendix B.1.1.
_IMAGENET = Grid((0.003, 0.01, 0.03, 0.06), "1%")
_CIFAR = Grid((0.001, 0.003, 0.01, 0.03), "2%")
_PETS = Grid((0.001, 0.003, 0.01, 0.03), "10%")

GRIDS = {
    "imagenet_b16": _IMAGENET,
    "imagenet_l16_512": _IMAGENET,
    "cifar10_b16": _CIFAR,
    "cifar100_b16": _CIFAR,
    "pets_b16": _PETS,
    "flowers_b16": _PETS,
    # One rate for all tasks, and 200 of the 1,000 images.
    "vtab_l16": Grid((0.01,), "20%"),
}


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


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep that has been checked and can start.

    Args:
        run: The folder of the sweep, with the recipe that its runs share.
        recipe: This recipe.
        grid: The learning rates and the held-out images.
        num_seeds: Number of runs on the whole training split.
        splits: The training split without the held-out images, and these.
        dataset: The data set.
        config: How this process finds the other workers.
        chosen: The choice that `recipe` comes from, if it has a name.
        is_writer: Whether this process writes files and reports.
    """

    run: Run
    recipe: Recipe
    grid: Grid
    num_seeds: int
    splits: tuple[str, str]
    dataset: ImageDataset
    config: WorkerConfig
    chosen: ChosenRecipe | None
    is_writer: bool

    @property
    def num_runs(self) -> int:
        """Number of runs of the whole sweep."""
        num_rates = len(self.grid.learning_rates)
        return (num_rates if num_rates > 1 else 0) + self.num_seeds

    def __str__(self):
        train, held_out = self.splits
        count = self.dataset.num_examples
        choice = f"trained on {train} ({count(train):,} images), chosen on "
        choice += f"{held_out} ({count(held_out):,})"
        if len(self.grid.learning_rates) == 1:
            choice = "no other to choose from"
        seeds = "1 seed" if self.num_seeds == 1 else f"{self.num_seeds} seeds"
        whole, test = self.dataset.train_split, self.dataset.eval_split
        return (
            f"Sweep of {self.num_runs} runs in {self.run}\n"
            f"Learning rates {join_rates(self.grid.learning_rates)}: {choice}\n"
            f"Then {seeds}: trained on {whole} "
            f"({count(whole):,}), tested on {test} ({count(test):,})"
        )

    def cases(self, done: Sequence[Trial]) -> Iterator[Case]:
        """Yield the cases to train, given the trials that are done meanwhile.

        Raises:
            NonFiniteLossError: If the loss is not finite with any rate.
        """
        rates = self.grid.learning_rates
        if len(rates) > 1:
            for rate in rates:
                yield Case(CHOICE, rate, self.recipe.seed)
        best = self.best_rate(done)
        if best is None:
            raise NonFiniteLossError(
                "The loss is not finite with any of the learning rates "
                f"{join_rates(rates)}"
            )
        for index in range(self.num_seeds):
            yield Case(REPORT, best, self.recipe.seed + index)

    def best_rate(self, trials: Sequence[Trial]) -> float | None:
        """Return the learning rate that is chosen, if all were tried."""
        rates = self.grid.learning_rates
        if len(rates) == 1:
            return rates[0]
        tried = [t for t in trials if t.purpose == CHOICE]
        judged = [t for t in tried if t.accuracy is not None]
        if len(tried) < len(rates) or not judged:
            return None
        return best_rate(judged)

    def recipe_of(self, case: Case) -> Recipe:
        """Return the recipe of a run."""
        changes = {"learning_rate": case.learning_rate, "seed": case.seed}
        if case.purpose == CHOICE:
            train, held_out = self.splits
            changes |= {"train_split": train, "eval_split": held_out}
        return dataclasses.replace(self.recipe, **changes)

    def choice_of(self, recipe: Recipe) -> ChosenRecipe | None:
        """Return the choice of the recipe of a run, see `prepare`.

        Its settings do not follow from the number of images any more, but how
        it fits into the memory does.
        """
        if self.chosen is None:
            return None
        free = self.chosen.free_fields(None)
        given = {
            field.name: getattr(recipe, field.name)
            for field in dataclasses.fields(recipe)
            if field.name not in free
        }
        return ChosenRecipe(self.chosen.name, given)


def join_rates(rates: Iterable[float]) -> str:
    """Return learning rates as a flag lists them."""
    return ",".join(f"{rate:g}" for rate in rates)
