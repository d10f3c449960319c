"""The benchmark VTAB-1k: a sweep for each of its 19 tasks.

Reference: Zhai et al. 2019, arXiv:1910.04867; as used by Dosovitskiy et al.
    2021, arXiv:2010.11929, table 9.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from keras_vit.tables import check_name, format_table
from trainers.data.readers.vtab import VTAB_GROUPS, VTAB_TASKS
from trainers.evaluation.probing import summarize
from trainers.paths import as_path, write_csv_file
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.vit import RECIPES_BY_TASK
from trainers.sweeps.sweeping import REPORT, Sweep, open_sweep, run_sweep
from trainers.training.run_folder import write_report

NUM_HELD_OUT = "200"  # Of the 1,000 training images, the last.
OWN_FIELDS = ("dataset", "train_split", "eval_split")
ALL = "all"


class TaskScore(NamedTuple):
    """The result of a task.

    Args:
        task: A key of VTAB_TASKS.
        learning_rate: The chosen one.
        accuracies: On the test split, for each seed.
    """

    task: str
    learning_rate: float
    accuracies: list[float]


def open_tasks(
    chosen: ChosenRecipe,
    sweep_dir: str,
    tasks: Sequence[str] | None = None,
    **options,
) -> list[Sweep]:
    """Return a checked sweep for each task, before any of them is trained.

    Args:
        chosen: The recipe, and the flags that change it for all tasks.
        sweep_dir: The folder of the benchmark, with a folder for each task.
        tasks: Keys of VTAB_TASKS, or these without `vtab:`. Default: all.
        **options: See `open_sweep`.

    Raises:
        ValueError: If there is no such task, the recipe does not fit its
            augmentation to the task, or a task cannot be trained.
    """
    if chosen.file or chosen.name not in RECIPES_BY_TASK:
        raise ValueError(
            "`recipe` must have an augmentation that depends on the task: "
            f"{', '.join(RECIPES_BY_TASK)}. Received: recipe={chosen.name!r}"
        )
    for name in OWN_FIELDS:
        if chosen.given.get(name) is not None:
            raise ValueError(
                f"`{name}` is that of each task, see `tasks`. "
                f"Received: {name}={chosen.given[name]!r}"
            )
    names = [f"vtab:{name.removeprefix('vtab:')}" for name in tasks or ()]
    for name in names:
        check_name(VTAB_TASKS, name, "tasks")
    sweeps = []
    for name in dict.fromkeys(names or VTAB_TASKS):
        given = {**chosen.given, "dataset": name}
        of_task = dataclasses.replace(chosen, given=given)
        folder = str(as_path(sweep_dir) / name.removeprefix("vtab:"))
        sweeps.append(
            open_sweep(of_task.recipe, folder, chosen=of_task, **options)
        )
    return sweeps


def run_tasks(
    sweeps: Sequence[Sweep],
    sweep_dir: str,
    must_stop: Callable[[], bool] = lambda: False,
    preparing: Callable = contextlib.nullcontext,
) -> list[TaskScore]:
    """Train all runs that are not finished, and write the scores.

    `vtab.json` and `vtab.csv` are written after each task.

    Args:
        sweeps: The result of `open_tasks`.
        sweep_dir: The folder of the benchmark.
        must_stop: See `run_sweep`.
        preparing: See `run_sweep`.

    Raises:
        ValueError, NonFiniteLossError: See `run_sweep`.
        Interrupted, WorkerLostError, CheckpointError, OSError: See `run_sweep`.
    """
    scores = []
    for number, sweep in enumerate(sweeps, 1):
        if sweep.is_writer:
            name = sweep.dataset.name
            print(f"\nTask {number} of {len(sweeps)}: {name}\n{sweep}")
        trials = run_sweep(sweep, must_stop, preparing)
        tested = [trial for trial in trials if trial.purpose == REPORT]
        accuracies = [trial.accuracy for trial in tested]
        rate = tested[0].learning_rate
        scores.append(TaskScore(sweep.dataset.name, rate, accuracies))
        if sweep.is_writer:
            save_scores(sweep_dir, scores)
    return scores


def average_groups(scores: Sequence[TaskScore]) -> dict[str, dict]:
    """Return the results of the groups of tasks that are complete.

    The score of a group is the mean of its tasks, for each seed. Mean and
    deviation are those over the seeds.

    Returns:
        See `summarize`, for each of VTAB_GROUPS and for all tasks.
    """
    found = {}
    accuracies = {score.task: score.accuracies for score in scores}
    for group, tasks in list_groups():
        if accuracies.keys() >= tasks:
            columns = zip(*(accuracies[task] for task in tasks))
            found[group] = summarize([sum(c) / len(c) for c in columns])
    return found


def list_groups() -> Iterator[tuple[str, set[str]]]:
    """Yield each group and its tasks; all tasks come last."""
    for group in VTAB_GROUPS:
        yield group, {n for n, t in VTAB_TASKS.items() if t.group == group}
    yield ALL, set(VTAB_TASKS)


def save_scores(sweep_dir: str, scores: Sequence[TaskScore]):
    """Write vtab.json and vtab.csv."""
    folder = as_path(sweep_dir)
    report = {
        "tasks": {
            score.task: {
                "group": VTAB_TASKS[score.task].group,
                "learning_rate": score.learning_rate,
                **summarize(score.accuracies),
            }
            for score in scores
        },
        "means": average_groups(scores),
    }
    write_report(folder, "vtab.json", report)
    rows = [["task", "group", "learning_rate", "accuracy", "deviation"]]
    for name, row in report["tasks"].items():
        values = (row["learning_rate"], row["mean"], row["deviation"])
        rows.append([name, row["group"], *values])
    for group, row in report["means"].items():
        rows.append(["mean", group, "", row["mean"], row["deviation"]])
    write_csv_file(folder / "vtab.csv", rows)


def describe_scores(scores: Sequence[TaskScore]) -> str:
    """Return a Markdown table of the tasks and of the complete groups."""
    rows = [
        [
            score.task.removeprefix("vtab:"),
            VTAB_TASKS[score.task].group,
            f"{score.learning_rate:g}",
            format_accuracy(summarize(score.accuracies)),
        ]
        for score in scores
    ]
    sizes = {group: len(tasks) for group, tasks in list_groups()}
    for group, found in average_groups(scores).items():
        title = f"mean of {sizes[group]}"
        rows.append([title, group, "", format_accuracy(found)])
    return format_table(["task", "group", "rate", "test accuracy, %"], rows)


def format_accuracy(found: Mapping) -> str:
    """Return the mean and the deviation of `summarize`, in percent."""
    text = f"{100 * found['mean']:.2f}"
    if found["deviation"] is not None:
        text += f" ± {100 * found['deviation']:.2f}"
    return text
