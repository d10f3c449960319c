"""Progress and MetricsFile: the metrics of a run, shown and written."""

import csv
import io
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import keras

from keras_vit.progress import (
    SECONDS_BETWEEN_DRAWINGS,
    draw_bar,
    draw_line,
    format_seconds,
)
from trainers import plugins
from trainers.paths import as_path, read_written, write_atomically

# Share of the time spent waiting for images that causes a warning.
LONGEST_INPUT_WAIT = 0.2


class Progress(keras.callbacks.Callback):
    """Show the progress, the metrics and the speed of a training run.

    On a terminal, this is a progress bar; elsewhere, such as in a log file, it
    is one line for each evaluation. (Neither `keras.utils.Progbar` nor `tqdm`
    fits its line to the terminal by dropping the least important values.)

    Adds to the logs of `on_epoch_end`, for the callbacks after this one:
    updates_per_second; images_per_second; input_wait, the share of the time
    spent waiting for images; and mfu, the share of the peak FLOP/s that the
    model used. These are means over the calls of an epoch. The very first call
    is excluded, because it includes tracing; an epoch that consists only of
    this call has none of these values.

    The logs of `on_train_batch_end` must contain loss and accuracy (means over
    the epoch so far), learning_rate, step (total updates so far), and for the
    last call images, seconds, and input_seconds, the seconds that it waited
    for input.

    Args:
        total_steps: Total number of updates.
        steps_per_eval: Updates between two evaluations.
        flops_per_image: FLOPs of the forward and backward pass of one image:
            `flops.TRAINING_PASSES * flops.count_flops(model)`, which excludes
            the products that rematerialization repeats; None omits mfu.
        peak_flops: FLOP/s of all devices together; None omits mfu.
        stream: Stream to write to; None for the standard output.
        clock: Returns the time in seconds, such as `time.perf_counter`.
        is_large: Whether the data set is worth the work of other machines.

    Reference: Chowdhery et al. 2022, arXiv:2204.02311, appendix B, for mfu.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_eval: int,
        flops_per_image: float | None = None,
        peak_flops: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        is_large: bool = True,
    ):
        super().__init__()
        self.total_steps = total_steps
        self.steps_per_eval = steps_per_eval
        self.flops_per_image = flops_per_image
        self.peak_flops = peak_flops
        self.stream = stream or sys.stdout
        self.clock = clock
        self.is_large = is_large

    def on_train_begin(self, logs=None):
        self._first = None  # Time and step after the first call.
        self._step = 0  # After the last call.
        self._has_warned = False
        self._is_drawn = False

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = epoch * self.steps_per_eval
        self._updates = 0
        self._images = self._seconds = self._input_seconds = 0.0
        self._last_drawing = -math.inf

    def on_train_batch_end(self, batch, logs=None):
        now = self.clock()
        if self._first is None:
            self._first = now, logs["step"]
        else:
            self._updates += logs["step"] - self._step
            self._images += logs["images"]
            self._seconds += logs["seconds"]
            self._input_seconds += logs["input_seconds"]
        self._step = logs["step"]
        if (
            self.stream.isatty()
            and now - self._last_drawing >= SECONDS_BETWEEN_DRAWINGS
        ):
            self._last_drawing = now
            self._draw(logs)

    def on_epoch_end(self, epoch, logs=None):
        logs.update(self._rates())
        if self.stream.isatty():
            self._draw(logs)
            self._end_line()
        else:
            print("  ".join(self._parts(logs)), file=self.stream, flush=True)
        wait = logs.get("input_wait", 0.0)
        if wait > LONGEST_INPUT_WAIT and not self._has_warned:
            self._has_warned = True
            way = "let other machines prepare them (--data_service), "
            print(
                f"The input is the bottleneck: {wait:.0%} of the time is spent "
                f"waiting for images; {way if self.is_large else ''}choose a "
                "cheaper --augment or take more CPU cores.",
                file=self.stream,
                flush=True,
            )

    def on_train_end(self, logs=None):
        self._end_line()  # After an error in the middle of an epoch.

    def _rates(self):
        if not self._seconds:
            return {}
        images_per_second = self._images / self._seconds
        rates = {
            "updates_per_second": self._updates / self._seconds,
            "images_per_second": images_per_second,
            "input_wait": self._input_seconds / self._seconds,
        }
        if self.flops_per_image and self.peak_flops:
            flops = self.flops_per_image * images_per_second
            rates["mfu"] = flops / self.peak_flops
        return rates

    def _parts(self, logs):
        """Return the parts of the line, the most important first."""
        step = int(logs["step"])
        parts = [f"update {step:,}/{self.total_steps:,}"]
        start, first_step = self._first or (None, step)
        if first_step < step < self.total_steps:
            # Wall time, which includes evaluations.
            pace = (self.clock() - start) / (step - first_step)
            left = pace * (self.total_steps - step)
            parts.append(f"{format_seconds(left)} left")
        shown = {**logs, **self._rates()}
        of_plugins = {f"val_{x}": f"val_{x} {{:.4g}}" for x in plugins.METRICS}
        return parts + [
            template.format(shown[name])
            for name, template in (SHOWN | of_plugins).items()
            if name in shown
        ]

    def _draw(self, logs):
        """Draw the line over the last one, as many parts as fit."""
        steps = self.total_steps - self._epoch_start
        steps = min(steps, self.steps_per_eval)
        bar = draw_bar((logs["step"] - self._epoch_start) / steps)
        draw_line(self.stream, [bar, *self._parts(logs)])
        self._is_drawn = True

    def _end_line(self):
        if self._is_drawn:
            self.stream.write("\n")
            self.stream.flush()
        self._is_drawn = False


# The logs to show, the most important first.
SHOWN = {
    "loss": "loss {:.4f}",
    "accuracy": "accuracy {:.4f}",
    "val_loss": "val_loss {:.4f}",
    "val_mean_average_precision": "val_mAP {:.4f}",
    "val_mean_iou": "val_mIoU {:.4f}",
    "val_abs_rel": "val_abs_rel {:.4f}",
    "val_delta1": "val_delta1 {:.4f}",
    "val_accuracy": "val_accuracy {:.4f}",
    "updates_per_second": "{:.3g} updates/s",
    "images_per_second": "{:,.1f} images/s",
    "input_wait": "input {:.0%}",
    "mfu": "MFU {:.1%}",
    "learning_rate": "lr {:.2e}",
}


# The first columns, in this order; others follow, sorted by name.
COLUMNS = (
    "epoch",
    "step",
    "loss",
    "accuracy",
    "val_loss",
    "val_accuracy",
    "val_balanced_accuracy",
    "val_mean_average_precision",
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


# Accuracy is highest for models that never answer rare classes.
FIGURES = (
    "val_mean_iou",
    "val_delta1",
    "val_mean_average_precision",
    "val_balanced_accuracy",
    "val_accuracy",
)


def name_best(logs: Mapping[str, float]) -> str | None:
    """Return by which figure of an evaluation the best one is chosen."""
    return next((name for name in FIGURES if name in logs), None)


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
