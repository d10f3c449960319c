"""Pictures of a run, as PNG files. Needs matplotlib."""

import warnings
from collections.abc import Sequence

import numpy as np

from keras_vit.preprocessing.description import (
    Normalization,
    to_fractions,
)
from trainers.loop.metrics import read_metrics
from trainers.paths import Path, draft_of

# Most images of a batch that a picture shows.
MOST_IMAGES = 32
# Smallest share of a second class that is written below an image.
SMALLEST_SHARE = 0.005


def plot_learning_curve(metrics_path: Path, path: Path):
    """Draw loss, error and learning rate over the updates.

    Leaves out columns that the rows do not have, such as those of a test split.

    Args:
        metrics_path: The metrics.csv of a run.
        path: The PNG file to write.
    """
    rows = read_metrics(metrics_path)
    figure = _figure(figsize=(11, 3.4))
    loss, error, rate = figure.subplots(1, 3)
    for prefix, label, color in (
        ("", "training", "tab:blue"),
        ("val_", "test", "tab:orange"),
    ):
        style = {"label": label, "color": color}
        _plot_column(loss, rows, f"{prefix}loss", **style)
        _plot_column(error, rows, f"{prefix}accuracy", _error, **style)
    _plot_column(rate, rows, "learning_rate", color="tab:green")
    loss.set(xlabel="update", ylabel="loss")
    error.set(xlabel="update", ylabel="error (%)")
    rate.set(xlabel="update", ylabel="learning rate")
    rate.ticklabel_format(axis="y", scilimits=(-2, 3))
    for axes in (loss, error, rate):
        axes.grid(alpha=0.3)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (error, rate):
        axes.set_ylim(bottom=0)
    accuracies = [r["val_accuracy"] for r in rows if "val_accuracy" in r]
    if accuracies:
        error.set_title(
            f"test accuracy {accuracies[-1]:.2%}, best {max(accuracies):.2%}",
            fontsize=10,
        )
    if loss.lines:
        loss.legend(frameon=False)
    with draft_of(path) as draft:
        figure.savefig(draft)


def _plot_column(axes, rows, name, change=float, **style):
    points = [(row["step"], change(row[name])) for row in rows if name in row]
    if points:
        # Markers crowd a long line, but a single point needs one.
        marker = "." if len(points) <= 50 else None
        axes.plot(*zip(*points), marker=marker, clip_on=False, **style)


def _error(accuracy):
    return 100 * (1 - accuracy)


def plot_batch(
    images: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    normalization: Normalization,
    path: Path,
):
    """Draw the first images of a batch, with their labels below.

    For a label of several classes, such as mixup creates, the two largest
    shares are shown.

    Shapes:
        images: (B, H, W, C) with 1 or 3 channels, as the model reads them.
        labels: (B, classes), shares.

    Args:
        images: As the model receives them.
        labels: Of each image.
        class_names: In the order of the labels.
        normalization: Mean and deviation of the images.
        path: The PNG file to write.
    """
    images, labels = images[:MOST_IMAGES], labels[:MOST_IMAGES]
    texts = [describe_label(label, class_names) for label in labels]
    pixels = to_fractions(images, normalization)
    _draw_tiles(pixels, texts, ["black"] * len(texts), path)


def describe_label(label: np.ndarray, class_names: Sequence[str]) -> str:
    """Return the name of the class, or the two largest shares, a line each.

    Args:
        label: (classes,), shares.
        class_names: In the order of `label`.

    Example:
        >>> print(describe_label(np.array([0.25, 0, 0.75]), ["a", "b", "c"]))
        c 75%
        a 25%
    """
    largest = np.argsort(-label, kind="stable")[:2]
    if label[largest[-1]] < SMALLEST_SHARE or len(label) == 1:
        return _shorten(class_names[largest[0]])
    return "\n".join(
        f"{_shorten(class_names[index])} {label[index]:.0%}"
        for index in largest
    )


def _shorten(name):
    return name if len(name) <= 16 else f"{name[:15]}\u2026"


def plot_predictions(
    images: np.ndarray,
    truths: Sequence[str],
    predictions: Sequence[str],
    scores: Sequence[float],
    normalization: Normalization,
    path: Path,
):
    """Draw images with the predicted class below each, mistakes in red.

    Shapes:
        images: (B, H, W, C) with 1 or 3 channels, floats.

    Args:
        images: As the model reads them.
        truths: Their classes.
        predictions: The predicted classes.
        scores: The probabilities of the predicted classes.
        normalization: Mean and deviation of the images.
        path: The PNG file to write.
    """
    texts, colors = [], []
    for truth, prediction, score in zip(truths, predictions, scores):
        right = truth == prediction
        texts.append(
            f"{prediction} {score:.0%}" + ("" if right else f"\n(is {truth})")
        )
        colors.append("black" if right else "red")
    _draw_tiles(to_fractions(images, normalization), texts, colors, path)


def plot_reconstructions(
    images: np.ndarray,
    covered: np.ndarray,
    predicted: np.ndarray,
    normalization: Normalization,
    path: Path,
):
    """Draw images, their visible patches and their reconstructions in rows.

    Shapes:
        images, covered, predicted: (B, H, W, C) with 1 or 3 channels.

    Args:
        images: As the model reads them.
        covered: Without the hidden patches.
        predicted: With the predictions in their place.
        normalization: Mean and deviation of the images.
        path: The PNG file to write.
    """
    rows = {"image": images, "visible": covered, "reconstruction": predicted}
    count = len(images)
    pixels = to_fractions(np.concatenate([*rows.values()]), normalization)
    texts = [name for name in rows for _ in range(count)]
    _draw_tiles(pixels, texts, ["black"] * len(texts), path, count)


def _draw_tiles(images, texts, colors, path, columns=8):
    """Draw images (B, H, W, C) of 0..1 with a text below each, in rows.

    All on one pair of axes, in inches: matplotlib needs more time for axes
    than for images.
    """
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    side, gap, line = 1.38, 0.12, 0.15
    down = side * images.shape[1] / images.shape[2]
    room = line * (2 + max(text.count("\n") for text in texts))
    size = (columns * (side + gap), rows * (down + room))
    figure = _figure(size, layout=None)
    from keras_vit.analysis.plots.style import families_for

    families = families_for("".join(texts))
    axes = figure.add_axes((0, 0, 1, 1))
    for index, (image, text, color) in enumerate(zip(images, texts, colors)):
        row, column = divmod(index, columns)
        left, top = column * (side + gap) + gap / 2, row * (down + room)
        axes.imshow(
            np.clip(image, 0, 1).squeeze(),
            cmap="gray",
            vmin=0,
            vmax=1,
            extent=(left, left + side, top + down, top),
        )
        axes.text(
            left + side / 2,
            top + down + line / 3,
            text,
            ha="center",
            va="top",
            fontsize=8,
            family=families,
            color=color,
        )
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
    axes.set_axis_off()
    with draft_of(path) as draft, warnings.catch_warnings():
        # `families_for` has named the characters that no font has.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(draft)


def _figure(figsize, layout="constrained"):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib and Pillow: pip install matplotlib Pillow"
        ) from error
    return Figure(figsize=figsize, dpi=120, layout=layout)
