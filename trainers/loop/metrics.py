"""metrics.csv: the metrics of a run, one row for each evaluation."""

import csv
import io
import math
import os

import keras

from trainers.paths import as_path, read_written, write_atomically

# The first columns, in this order; others follow, sorted by name.
COLUMNS = (
    "epoch",
    "step",
    "loss",
    "accuracy",
    "val_loss",
    "val_accuracy",
    "learning_rate",
)


class MetricsFile(keras.callbacks.Callback):
    """Write the logs of each evaluation as a row of a CSV file.

    `keras.callbacks.CSVLogger` appends to its file, so after a crash the file
    may disagree with the checkpoint: the last row may be truncated, and an
    epoch whose state was not saved is trained and written twice. This callback
    first drops the rows after the checkpoint, and always replaces the whole
    file.

    Must come after the callbacks that add to the logs, such as Progress.

    Args:
        path: The CSV file. Overwritten if the run starts at update 0.
        first_step: Number of updates before this start; later rows are
            dropped.
    """

    def __init__(self, path: str | os.PathLike, first_step: int = 0):
        super().__init__()
        self.path = as_path(path)
        self.first_step = first_step
        self.rows = []

    def on_train_begin(self, logs=None):
        rows = read_metrics(self.path) if self.path.exists() else []
        self.rows = [row for row in rows if row["step"] <= self.first_step]

    def on_epoch_end(self, epoch, logs=None):
        # A run that was stopped during an evaluation repeats it.
        self.rows = [row for row in self.rows if row["step"] < logs["step"]]
        self.rows.append({"epoch": float(epoch), **logs})
        write_atomically(self.path, format_metrics(self.rows))


def read_metrics(path: str | os.PathLike) -> list[dict[str, float]]:
    """Return the rows of a metrics.csv, in the order of their steps.

    Skips truncated rows, and cells that are not numbers, such as the NA of
    Keras. If several rows have the same step, the last one is used.

    Args:
        path: Written by MetricsFile or `keras.callbacks.CSVLogger`.

    Raises:
        ContentError: If it is no text.
    """
    remedy = "move it away to go on without these metrics"
    return read_written(as_path(path), parse_metrics, remedy)


def parse_metrics(text: str) -> list[dict[str, float]]:
    """Return the rows of `read_metrics`, from the text of the file."""
    # A line without a line break may be truncated within a number.
    lines = [line for line in text.splitlines(True) if line.endswith("\n")]
    columns, *rows = csv.reader(lines) if lines else [[]]
    found = {}
    for cells in rows:
        row = {name: _parse(cell) for name, cell in zip(columns, cells)}
        row = {name: value for name, value in row.items() if value is not None}
        if len(cells) == len(columns) and "step" in row:
            found[row["step"]] = row
    return [found[step] for step in sorted(found)]


def format_metrics(rows: list[dict[str, float]]) -> str:
    """Return rows as CSV text, with empty cells for missing values.

    Example:
        >>> print(format_metrics([{"loss": 0.5, "step": 3}]), end="")
        step,loss
        3,0.5
    """
    names = {name for row in rows for name in row}
    columns = [name for name in COLUMNS if name in names]
    columns += sorted(names.difference(COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _format(value) for name, value in row.items()})
    return text.getvalue()


def _parse(cell):
    try:
        return float(cell)
    except ValueError:
        return None


def _format(value):
    value = float(value)
    is_whole = math.isfinite(value) and value.is_integer()
    return str(int(value)) if is_whole else repr(value)
