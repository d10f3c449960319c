"""`open_sweep`: check all requirements of a sweep."""

import dataclasses
import math
from collections.abc import Sequence

from trainers.distribute.cluster import ALONE, WorkerConfig
from trainers.distribute.strategies import make_strategy
from trainers.distribute.workers import (
    check_agreement,
    is_chief,
    name_lost_workers,
)
from trainers.paths import as_path, check_folder
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipe import Recipe
from trainers.runs.preparation import check_labels, open_in_turn
from trainers.runs.run import Run, binding_fields, list_changes
from trainers.sweeps.held_out import check_classes_held_out, hold_out
from trainers.sweeps.plan import Grid, Sweep, choose_grid, join_rates
from trainers.sweeps.trials import read_report, read_trials


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
    _check_choices(run, recipe, learning_rates, num_seeds)
    strategy = make_strategy(recipe.strategy, config)
    with name_lost_workers(strategy, lambda: "before the first run"):
        choices = {
            "learning_rates": learning_rates,
            "num_seeds": num_seeds,
            "held_out": held_out,
            "results": read_trials(run.folder),
        }
        values = [(name, repr(x).encode()) for name, x in choices.items()]
        check_agreement(strategy, "sweep", values)
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
        run=run,
        recipe=recipe,
        grid=grid,
        num_seeds=num_seeds,
        splits=hold_out(dataset, grid.held_out),
        dataset=dataset,
        config=config,
        chosen=chosen,
        is_writer=is_chief(strategy),
    )
    if started:
        check_unchanged(sweep, started)
    elif len(rates) > 1:
        check_classes_held_out(dataset, sweep.splits[1])
    return sweep


def _check_choices(run, recipe, rates, num_seeds):
    check_folder(run.folder, "sweep_dir")
    if run.started_recipe():
        raise ValueError(
            "`sweep_dir` must not be the folder of a run. "
            f"Received: sweep_dir={str(run)!r}"
        )
    if not recipe.needs_labels:
        raise ValueError(
            "`objective` must be classify: a sweep compares accuracies. "
            f"Received: objective={recipe.objective!r}"
        )
    rates = (1.0,) if rates is None else rates
    valid = all(0 < rate < math.inf for rate in rates)
    if not valid or not rates or len(set(rates)) < len(rates):
        raise ValueError(
            "`learning_rates` must be different positive numbers. "
            f"Received: learning_rates={join_rates(rates)}"
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
    held_out = sweep.splits[1]
    old, new = (
        binding_fields(recipe) | {"held_out": split, "class_names": names}
        for recipe, split, names in (
            (
                started,
                read_report(sweep.run.folder).get("held_out", held_out),
                sweep.run.load_class_names(),
            ),
            (sweep.recipe, held_out, sweep.dataset.class_names),
        )
    )
    changed = list_changes(old, new)
    if changed:
        raise ValueError(
            "`sweep_dir` holds a sweep of another recipe; choose another "
            f"folder. Received: sweep_dir={str(sweep.run)!r} with "
            + "; ".join(changed)
        )
