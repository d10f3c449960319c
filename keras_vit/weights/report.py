"""LoadReport: what a load did with a checkpoint and with a model."""

import dataclasses
import warnings


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What a load did with a checkpoint and with the weights of a model.

    Args:
        path: The file or folder that was read.
        layout: Its family, a key of LAYOUTS.
        used: Names of the arrays in the file that were loaded.
        resized: Weights that were loaded in another size, and how.
        reset: Weights of the model that start anew.
        ignored: Names of the arrays in the file that were not loaded.
        notes: Why the outputs may differ from those of the source, and the
            argument that settles it.
        normalization: The `mode` of `preprocess_input` that the file asks
            for; None if it does not say.
    """

    path: str
    layout: str
    used: tuple[str, ...]
    resized: tuple[str, ...]
    reset: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    normalization: str | tuple | None = None

    def __str__(self):
        lines = [f"{self.path} ({self.layout}): {len(self.used)} arrays used"]
        for field in ("resized", "reset", "ignored", "notes"):
            rows = getattr(self, field)
            if rows:
                lines.append(f"{field}: {', '.join(rows)}")
        return "\n".join(lines)


def warn(report: LoadReport, stacklevel: int, without=()):
    """Warn with each note of a report.

    Args:
        report: Report of the load.
        stacklevel: Number of frames from here to the caller that is to see
            the warning.
        without: Arguments that the caller has chosen. Notes on them are not
            news.
    """
    for note in report.notes:
        if not any(f"`{name}=" in note for name in without):
            warnings.warn(note, stacklevel=stacklevel + 1)
