"""Trial: the result of one run of a sweep, and the choice among several."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from trainers.paths import Path, parse_object, read_written

CHOICE, REPORT = "choice", "report"
REPORT_NAME = "sweep.json"


class Case(NamedTuple):
    """The settings of one run of a sweep.

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
        """The settings of the run."""
        return Case(self.purpose, self.learning_rate, self.seed)


def best_rate(choice: Iterable[Trial]) -> float:
    """Return the rate of the highest accuracy; of equals, the lowest loss.

    Args:
        choice: Trials with an accuracy.
    """
    return max(choice, key=lambda t: (t.accuracy, -t.loss)).learning_rate


def read_report(folder: Path) -> dict:
    """Return the report of an earlier start, empty if there is none.

    Args:
        folder: The folder of the sweep.

    Raises:
        ContentError: If the file is not a report.
    """
    path = folder / REPORT_NAME
    if not path.exists():
        return {}

    def parse(text):
        report = parse_object(text)
        report["trials"] = [Trial(**row) for row in report["trials"]]
        return report

    return read_written(path, parse, "choose another folder")


def read_trials(folder: Path) -> list[Trial]:
    """Return the trials of earlier starts.

    Args:
        folder: The folder of the sweep.
    """
    return read_report(folder).get("trials", [])
