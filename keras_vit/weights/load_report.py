"""LoadReport: the result of loading a checkpoint into a model."""

import dataclasses
import warnings
from collections.abc import Iterable

from keras_vit.preprocessing.settings import Preprocessing


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of loading a checkpoint into a model.

    Args:
        path: The file or folder that was read.
        layout: Its family, a key of LAYOUTS.
        used: Names of the arrays in the file that were loaded.
        resized: Weights that were resized, with the sizes and the rule.
        reset: Weights of the model that were initialised anew.
        ignored: Names of the arrays in the file that were not loaded.
        notes: Reasons why the outputs may differ from those of the source,
            each with the argument to change.
        preprocessing: How the model of the file reads images; None if it is
            unknown.
    """

    path: str
    layout: str
    used: tuple[str, ...]
    resized: tuple[str, ...]
    reset: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    preprocessing: Preprocessing | None = None

    def with_reset(self, paths: Iterable[str]) -> "LoadReport":
        """Return the report of a model with further weights that are new.

        Args:
            paths: Paths of these weights.
        """
        new = dict.fromkeys([*self.reset, *paths])
        used = tuple(name for name in self.used if name not in new)
        return dataclasses.replace(self, used=used, reset=tuple(new))

    def __str__(self):
        lines = [f"{self.path} ({self.layout}): {len(self.used)} arrays used"]
        for field in ("resized", "reset", "ignored", "notes"):
            rows = getattr(self, field)
            if rows:
                lines.append(f"{field}: {', '.join(rows)}")
        return "\n".join(lines)


def warn(report: LoadReport, stacklevel: int, without=()):
    """Give a warning for each note of a report.

    Args:
        report: Report of the load.
        stacklevel: Number of frames from here to the caller that the warning
            points at.
        without: Arguments that the caller passed; notes on them are skipped.
    """
    for note in report.notes:
        if not any(f"`{name}=" in note for name in without):
            warnings.warn(note, stacklevel=stacklevel + 1)
