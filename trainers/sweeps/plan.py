"""Sweep: a checked sweep and its runs, and `open_sweep`, which checks it."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence

from trainers.data.datasets import ImageDataset
from trainers.distribute.cluster import ALONE, WorkerConfig
from trainers.distribute.strategies import make_strategy
from trainers.distribute.workers import is_chief
from trainers.loop.errors import NonFiniteLossError
from trainers.paths import Path, as_path
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.grids import Grid, choose_grid
from trainers.recipes.schema import Recipe
from trainers.runs.preparation import check_labels, open_in_turn
from trainers.runs.run import Run, binding_fields, list_changes
from trainers.sweeps.held_out import check_classes_held_out, hold_out
from trainers.sweeps.trials import CHOICE, REPORT, Case, Trial, best_rate


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
    def report_path(self) -> Path:
        """The results so far, and their mean."""
        return self.run.folder / "sweep.json"

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
        whole, test = self.dataset.train_split, self.dataset.eval_split
        return (
            f"Sweep of {self.num_runs} runs in {self.run}\n"
            f"Learning rates {_join(self.grid.learning_rates)}: {choice}\n"
            f"Then {self.num_seeds} seeds: trained on {whole} "
            f"({count(whole):,}), tested on {test} ({count(test):,})"
        )

    def cases(self, done: Sequence[Trial]) -> Iterator[Case]:
        """Yield what to train, given the trials that are done meanwhile.

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
                f"{_join(rates)}"
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

    def read_trials(self) -> list[Trial]:
        """Return the trials of an earlier start, in their order."""
        return [Trial(**row) for row in _read(self.report_path, "trials", [])]


def open_sweep(
    recipe: Recipe,
    sweep_dir: str,
    *,
    learning_rates: Sequence[float] | None = None,
    num_seeds: int = 3,
    held_out: str | None = None,
    config: WorkerConfig = ALONE,
    chosen: ChosenRecipe | None = None,
) -> Sweep:
    """Return a checked sweep for `run_sweep`.

    If the folder has an earlier sweep of the same recipe, it is continued.

    Args:
        recipe: The settings that all runs share.
        sweep_dir: The folder of the sweep; created if needed.
        learning_rates: The learning rates to try. Default: see `choose_grid`.
        num_seeds: Number of runs on the whole training split. Their seeds are
            that of the recipe and those after it.
        held_out: The training images that choose the learning rate, see
            `hold_out`. Default: see `choose_grid`.
        config: How this process finds the other workers.
        chosen: The choice that `recipe` comes from; None for the recipe as it
            is.

    Raises:
        ValueError: If the sweep is not possible, or the folder has a sweep of
            another recipe. Nothing is written.
    """
    run = Run(as_path(sweep_dir))
    run.check_folder("sweep_dir")
    _check_numbers(learning_rates, num_seeds)
    if not recipe.needs_labels:
        raise ValueError(
            "`objective` must be classify: a sweep compares accuracies. "
            f"Received: objective={recipe.objective!r}"
        )
    strategy = make_strategy(recipe.strategy, config)
    dataset = open_in_turn(recipe, strategy)
    check_labels(recipe, dataset)
    started = run.load_recipe() if run.recipe_path.exists() else None
    if chosen:
        num_images = dataset.num_examples(dataset.train_split)
        replicas = strategy.num_replicas_in_sync
        recipe = chosen.fit(num_images, started, replicas)
    # The best evaluation would be chosen by images of the test split.
    recipe = dataclasses.replace(recipe, keep_best=False, patience=None)
    grid = choose_grid(chosen and chosen.name, recipe)
    rates = tuple(learning_rates or grid.learning_rates)
    grid = Grid(rates, held_out or grid.held_out)
    sweep = Sweep(
        run,
        recipe,
        grid,
        num_seeds,
        hold_out(dataset, grid.held_out),
        dataset,
        config,
        chosen,
        is_chief(strategy),
    )
    if started:
        check_unchanged(sweep, started)
    elif len(rates) > 1:
        check_classes_held_out(dataset, sweep.splits[1])
    return sweep


def _check_numbers(rates, num_seeds):
    rates = (1.0,) if rates is None else rates
    valid = all(0 < rate < math.inf for rate in rates)
    if not valid or not rates or len(set(rates)) < len(rates):
        raise ValueError(
            "`learning_rates` must be different positive numbers. "
            f"Received: learning_rates={_join(rates)}"
        )
    if num_seeds < 1:
        raise ValueError(
            f"`num_seeds` must be 1 or more. Received: num_seeds={num_seeds}"
        )


def check_unchanged(sweep: Sweep, started: Recipe):
    """Raise a ValueError if the folder has a sweep of another recipe.

    Learning rates and seeds may be added.

    Args:
        sweep: The sweep.
        started: The recipe of the sweep in the folder.
    """
    old = binding_fields(started) | {
        "held_out": _read(sweep.report_path, "held_out", sweep.splits[1]),
        "class_names": sweep.run.load_class_names(),
    }
    new = binding_fields(sweep.recipe) | {
        "held_out": sweep.splits[1],
        "class_names": sweep.dataset.class_names,
    }
    changed = list_changes(old, new)
    if changed:
        raise ValueError(
            "`sweep_dir` holds a sweep of another recipe; choose another "
            f"folder. Received: sweep_dir={str(sweep.run)!r} with "
            + "; ".join(changed)
        )


def _read(path, name, default):
    """Return a value in sweep.json, or the default if there is no such file."""
    if not path.exists():
        return default
    try:
        return json.loads(path.read_text())[name]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not what a sweep has written "
            f"({type(error).__name__}: {error}); choose another folder"
        ) from None


def _join(rates):
    return ",".join(f"{rate:g}" for rate in rates)
