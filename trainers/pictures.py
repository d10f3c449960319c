"""Pictures of a run, as PNG files. Needs matplotlib."""

import csv
import pathlib
from collections.abc import Sequence

import numpy as np


def plot_learning_curve(metrics_path: pathlib.Path, path: pathlib.Path):
    """Draw loss and error over the updates.

    Args:
        metrics_path: The metrics.csv of a run.
        path: The PNG file to write.
    """
    with open(metrics_path, newline="") as file:
        rows = [
            {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]
    steps = [row["step"] for row in rows]
    figure = _figure()
    left, right = figure.subplots(1, 2)
    for prefix, label, color in (
        ("", "training", "tab:blue"),
        ("val_", "test", "tab:orange"),
    ):
        loss = [row[f"{prefix}loss"] for row in rows]
        error = [100 * (1 - row[f"{prefix}accuracy"]) for row in rows]
        left.plot(steps, loss, ".-", label=label, color=color)
        right.plot(steps, error, ".-", label=label, color=color)
    left.set(xlabel="update", ylabel="loss")
    right.set(xlabel="update", ylabel="error (%)", ylim=(0, None))
    last = 100 * rows[-1]["val_accuracy"]
    right.set_title(f"test accuracy {last:.2f} %")
    left.legend()
    figure.savefig(path)


def plot_predictions(
    images: np.ndarray,
    truths: Sequence[str],
    guesses: Sequence[str],
    scores: Sequence[float],
    path: pathlib.Path,
):
    """Draw images with what the model took them for, errors in red.

    Shapes:
        images: (B, H, W, C) with 1 or 3 channels, floats in [-1, 1].

    Args:
        images: What the model saw.
        truths: Their classes.
        guesses: The classes the model gave them.
        scores: The probabilities of these.
        path: The PNG file to write.
    """
    columns = 8
    rows = -(-len(images) // columns)
    figure = _figure(figsize=(columns * 1.1, rows * 1.45))
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.axis("off")
    for axes, image, truth, guess, score in zip(
        figure.axes, images, truths, guesses, scores
    ):
        axes.imshow(np.clip((image + 1) / 2, 0, 1).squeeze(), cmap="gray")
        right = truth == guess
        title = f"{guess} {score:.0%}" + ("" if right else f"\n(is {truth})")
        axes.set_title(title, fontsize=8, color="black" if right else "red")
    figure.savefig(path)


def _figure(figsize=(9, 3.6)):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib: pip install 'keras-vit[plots]'"
        ) from error
    return Figure(figsize=figsize, dpi=120, layout="constrained")
