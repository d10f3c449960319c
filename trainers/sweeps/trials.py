"""Trial: the result of one run of a sweep, and what is chosen from several."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from keras_vit.tables import format_table
from trainers.evaluation.probing import summarize

CHOICE, REPORT = "choice", "report"


class Case(NamedTuple):
    """What one run of a sweep trains.

    Args:
        purpose: CHOICE of the learning rate, or REPORT.
        learning_rate: The highest.
        seed: Of the weights, the order and the augmentation.
    """

    purpose: str
    learning_rate: float
    seed: int

    @property
    def folder(self) -> str:
        """Name of the folder of the run."""
        return f"{self.purpose}_{self.learning_rate}_seed{self.seed}"

    def __str__(self):
        return f"learning rate {self.learning_rate:g}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of one run of a sweep.

    Args:
        purpose, learning_rate, seed: See `Case`.
        accuracy: On the held-out images, or for the report on the test split;
            None if the loss was not finite.
        loss: On the same images.
    """

    purpose: str
    learning_rate: float
    seed: int
    accuracy: float | None
    loss: float | None

    @property
    def case(self) -> Case:
        """What was trained."""
        return Case(self.purpose, self.learning_rate, self.seed)


def best_rate(choice: Iterable[Trial]) -> float:
    """Return the rate of the highest accuracy; of equals, the lowest loss.

    Args:
        choice: Trials with an accuracy.
    """
    return max(choice, key=lambda t: (t.accuracy, -t.loss)).learning_rate


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


def format_trials(trials: Iterable[Trial]) -> str:
    """Return trials as CSV text, with empty cells for missing values."""
    text = io.StringIO()
    fields = [field.name for field in dataclasses.fields(Trial)]
    writer = csv.DictWriter(text, [*fields, "run"], lineterminator="\n")
    writer.writeheader()
    for trial in trials:
        row = dataclasses.asdict(trial)
        writer.writerow({**row, "run": trial.case.folder})
    return text.getvalue()
