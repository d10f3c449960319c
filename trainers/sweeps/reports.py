"""The report of a sweep: its files, and its tables."""

import dataclasses
from collections.abc import Iterable, Sequence

from keras_vit.tables import format_table
from trainers.evaluation.probing import summarize
from trainers.paths import write_csv_file
from trainers.runs.run import write_report
from trainers.sweeps.plan import Sweep
from trainers.sweeps.trials import REPORT, REPORT_NAME, Trial

CSV_NAME = "sweep.csv"


def save_report(
    sweep: Sweep, trials: Sequence[Trial], others: Sequence[Trial] = ()
):
    """Write sweep.json and sweep.csv.

    Args:
        sweep: The sweep.
        trials: The trials so far.
        others: Trials of earlier starts that are not among them, perhaps of
            learning rates that are not tried any more.
    """
    whole = [*trials, *others]
    report = make_report(sweep, trials) | {
        "trials": [dataclasses.asdict(trial) for trial in whole]
    }
    write_report(sweep.run.folder, REPORT_NAME, report)
    write_csv_file(sweep.run.folder / CSV_NAME, tabulate_trials(whole))


def make_report(sweep: Sweep, trials: Sequence[Trial]) -> dict:
    """Return the results of a sweep so far.

    Args:
        sweep: The sweep.
        trials: Its trials.

    Returns:
        dataset, train_split, held_out, test_split: The images.
        learning_rates: Those that are tried.
        learning_rate: The one that was chosen, if all were tried.
        test: Mean, deviation and accuracies on the test split, after all runs.
    """
    tested = [t.accuracy for t in trials if t.purpose == REPORT]
    is_over = len(tested) == sweep.num_seeds
    return {
        "dataset": sweep.dataset.name,
        "train_split": sweep.dataset.train_split,
        "held_out": sweep.splits[1],
        "test_split": sweep.dataset.eval_split,
        "learning_rates": list(sweep.grid.learning_rates),
        "learning_rate": sweep.best_rate(trials),
        "test": summarize(tested) if is_over else None,
    }


def describe_choice(trials: Sequence[Trial], best: float | None) -> str:
    """Return a Markdown table of the learning rates.

    Args:
        trials: The trials of the choice.
        best: The learning rate that was chosen, if all were tried.
    """
    rows = [
        [
            f"{t.learning_rate:g}",
            *_format_result(t),
            "chosen" if t.learning_rate == best else "",
        ]
        for t in trials
    ]
    return format_table(
        ["learning rate", "held-out accuracy", "loss", ""], rows
    )


def describe_edge(rates: Iterable[float], best: float) -> str:
    """Return a line if the best rate is at the edge of those tried, else "".

    Example:
        >>> describe_edge((0.1, 0.2, 0.3), 0.2)
        ''
    """
    places = {
        min(rates): ("lowest", "lower"),
        max(rates): ("highest", "higher"),
    }
    if best not in places:
        return ""
    place, beyond = places[best]
    return (
        f"\nThis is the {place} of the rates tried. If a {beyond} one may be "
        "better, add it to --learning_rates and run the command again.\n"
    )


def describe_report(trials: Sequence[Trial]) -> str:
    """Return a Markdown table of the seeds, and a line with their mean."""
    rows = [[t.seed, *_format_result(t)] for t in trials]
    table = format_table(["seed", "test accuracy", "loss"], rows)
    found = summarize([t.accuracy for t in trials])
    line = f"Test accuracy: {100 * found['mean']:.2f}"
    if found["deviation"] is not None:
        line += f" +- {100 * found['deviation']:.2f}"
    noun = "seed" if len(trials) == 1 else "seeds, mean and standard deviation"
    return f"{table}\n\n{line} % ({len(trials)} {noun})"


def _format_result(trial):
    if trial.accuracy is None:
        return "-", "not finite"
    return f"{100 * trial.accuracy:.2f} %", f"{trial.loss:.4f}"


def tabulate_trials(trials: Iterable[Trial]) -> list[list]:
    """Return the names of the columns and the rows of a table of trials."""
    names = [field.name for field in dataclasses.fields(Trial)]
    rows = [
        [*dataclasses.asdict(trial).values(), trial.case.folder]
        for trial in trials
    ]
    return [[*names, "run"], *rows]
