"""Pictures and summaries of a run, as PNG files and for TensorBoard."""

import os
import warnings
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit.analysis.callbacks import AttentionPictures
from keras_vit.preprocessing.description import (
    Normalization,
    as_colours,
    to_fractions,
)
from keras_vit.progress import format_seconds
from trainers.data.batches import read_batches
from trainers.data.map_pictures import limits_of, paint_over
from trainers.engine.engine import Share
from trainers.paths import Path, draft_of
from trainers.training.report import name_best, read_metrics

# Most images of a batch that a picture shows.
MOST_IMAGES = 32
# Smallest share of a second class that is written below an image.
SMALLEST_SHARE = 0.005


def plot_learning_curve(metrics_path: Path, path: Path):
    """Draw loss, error and learning rate over the updates.

    Leaves out columns that the rows do not have, such as those of a test split.
    """
    rows = read_metrics(metrics_path)
    from keras_vit.analysis.plots.style import new_figure

    figure = new_figure(11, 3.4, layout="constrained")
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
    is_several: bool = False,
):
    """Draw the first images of a batch, with their labels below.

    For a label of several classes, such as mixup creates, the largest shares
    are shown, see `describe_label`.

    Shapes:
        images: (B, H, W, C) with 1 or 3 channels, as the model reads them.
        labels: (B, classes), shares.
    """
    images, labels = images[:MOST_IMAGES], labels[:MOST_IMAGES]
    texts = [describe_label(x, class_names, is_several) for x in labels]
    pixels = to_fractions(images, normalization)
    _draw_tiles(pixels, texts, ["black"] * len(texts), path)


def plot_maps(
    images: np.ndarray,
    maps: np.ndarray,
    class_names: Sequence[str],
    normalization: Normalization,
    path: Path,
):
    """Draw the first images of a batch under their maps, with what these say.

    Shapes:
        images: (B, H, W, C), as the model reads them. maps: (B, H, W), classes
        or, without `class_names`, depths; NaN where nothing is known.
    """
    images, maps = images[:MOST_IMAGES], maps[:MOST_IMAGES]
    limits = None if class_names else limits_of(maps)
    texts = [describe_map(found, class_names) for found in maps]
    pixels = to_fractions(images, normalization)
    tiles = [paint_over(*pair, limits) for pair in zip(pixels, maps)]
    _draw_tiles(np.stack(tiles), texts, ["black"] * len(texts), path)


def describe_map(found: np.ndarray, class_names: Sequence[str]) -> str:
    r"""Return the largest classes of a map, or its range of depths.

    Shapes:
        found: (H, W), NaN where nothing is known.

    Example:
        >>> describe_map(np.array([[0, 1, np.nan, 1]]), ["sky", "sea"])
        'sea 67%\nsky 33%'
        >>> describe_map(np.array([[2.0, 4.5]]), [])
        '2.0 to 4.5 m'
    """
    known = found[np.isfinite(found)]
    if not len(known):
        return "nothing known"
    if not class_names:
        return f"{known.min():.1f} to {known.max():.1f} m"
    shares = np.bincount(known.astype(int)) / len(known)
    largest = np.argsort(-shares, kind="stable")[:2]
    return "\n".join(
        f"{shorten(class_names[index])} {shares[index]:.0%}"
        for index in largest
        if shares[index]
    )


def describe_label(
    label: np.ndarray, class_names: Sequence[str], is_several: bool = False
) -> str:
    """Return the name of the class, or the largest shares, a line each.

    Shapes:
        label: (classes,), shares; NaN is unknown.

    Args:
        label: The label.
        class_names: Names of the classes.
        is_several: Whether an image may have several labels, or none.

    Example:
        >>> print(describe_label(np.array([0.25, 0, 0.75]), ["a", "b", "c"]))
        c 75%
        a 25%
        >>> print(describe_label(np.array([1, np.nan, 1]), "abc", True))
        a
        c
    """
    if is_several:
        shares = np.nan_to_num(label)
        found = [
            shorten(class_names[index])
            + (f" {shares[index]:.0%}" if shares[index] < 1 else "")
            for index in np.argsort(-shares, kind="stable")
            if shares[index] >= SMALLEST_SHARE
        ]
        more = [f"and {len(found) - 2} more"] if len(found) > 3 else []
        return "\n".join([*found[: 2 if more else 3], *more]) or "no label"
    if not label.any():
        return "no label"
    largest = np.argsort(-label, kind="stable")[:2]
    if label[largest[-1]] < SMALLEST_SHARE or len(label) == 1:
        return shorten(class_names[largest[0]])
    return "\n".join(
        f"{shorten(class_names[index])} {label[index]:.0%}" for index in largest
    )


def shorten(name: str) -> str:
    """Return a name that fits below a picture."""
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
    """
    texts, hits = [], []
    for truth, prediction, score in zip(truths, predictions, scores):
        right = truth == prediction
        texts.append(
            f"{prediction} {score:.0%}" + ("" if right else f"\n(is {truth})")
        )
        hits.append(right)
    plot_texts(images, texts, hits, normalization, path)


def plot_texts(
    images: np.ndarray,
    texts: Sequence[str],
    hits: Sequence[bool],
    normalization: Normalization,
    path: Path,
):
    """Draw images with a text below each, red if it is a mistake.

    Shapes:
        images: (B, H, W, C), as the model reads them.
    """
    colors = ["black" if is_right else "red" for is_right in hits]
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
    from keras_vit.analysis.plots.style import families_for, new_figure

    figure = new_figure(*size)
    families = families_for("".join(texts))
    axes = figure.add_axes((0, 0, 1, 1))
    for index, (image, text, color) in enumerate(zip(images, texts, colors)):
        row, column = divmod(index, columns)
        left, top = column * (side + gap) + gap / 2, row * (down + room)
        axes.imshow(
            as_colours(np.clip(image, 0, 1)).squeeze(),
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


NUM_DRAWN = 8


class Reconstructions(keras.callbacks.Callback):
    """Draw some images before, with hidden patches, and reconstructed.

    At each evaluation the picture is written to TensorBoard and to a file.

    Shapes:
        images: (B, H, W, C), as the model reads them.

    Args:
        images: The images, of the evaluation split.
        normalization: Mean and deviation of the images.
        averages: Returns values to use in place of the trainable weights, or
            None for the weights.
        log_dir: The folder of TensorBoard.
        path: The PNG file.
    """

    def __init__(
        self,
        images: np.ndarray,
        normalization: Normalization,
        averages,
        log_dir: Path,
        path: Path,
    ):
        super().__init__()
        self.images = np.asarray(images, "float32")
        self.normalization = normalization
        self.averages = averages
        self.path = path
        # A separate folder, because TensorBoard reads one file per folder.
        self._writer = tf.summary.create_file_writer(
            os.fspath(log_dir / "reconstructions")
        )

    def on_epoch_end(self, epoch, logs=None):
        values = self.averages()
        variables = self.model.trainable_variables
        # The scope does not change the variables on any device.
        with keras.StatelessScope(zip(variables, values) if values else None):
            covered, predicted = self.model.reconstruct(self.images)
        plot_reconstructions(
            self.images, covered, predicted, self.normalization, self.path
        )
        picture = tf.io.decode_png(self.path.read_bytes(), channels=3)
        with self._writer.as_default(int(logs["step"])):
            tf.summary.image("reconstructions", picture[None])
        self._writer.flush()

    def on_train_end(self, logs=None):
        self._writer.close()


def final_table(
    rows: Sequence[dict[str, float]],
    seconds: float | None = None,
    folder: str | os.PathLike | None = None,
    keep_best: bool = False,
) -> str:
    """Return the results of a run as a small table.

    Args:
        rows: The metrics of each evaluation: `MetricsFile.rows`.
        seconds: Duration of the training.
        folder: The folder of the run.
        keep_best: Whether the run keeps the model of the best evaluation.
    """
    cells = []
    if rows:
        last = rows[-1]
        cells.append(("updates", f"{last['step']:,.0f}"))
        cells += [(name, f"{last[name]:.4f}") for name in FINAL if name in last]
    name = name_best(rows[-1]) if rows else None
    if name:
        judged = [row for row in rows if name in row]
        best = max(judged, key=lambda row: (row[name], -row.get("val_loss", 0)))
        figure = f"{best[name]:.4f} at update {best['step']:,.0f}"
        if keep_best:
            figure += "; this model is kept"
        elif best["step"] != rows[-1]["step"]:
            figure += "; not kept, the model is the last one"
        cells.append((f"best {name}", figure))
    rates = [row["images_per_second"] for row in rows if RATE in row]
    if rates:
        cells.append(("images/s", f"{rates[-1]:,.1f}"))
    if seconds is not None:
        cells.append(("time", format_seconds(seconds)))
    if folder is not None:
        cells.append(("files", os.fspath(folder)))
    width = max((len(name) for name, _ in cells), default=0)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in cells)


def describe_skipped(names: Sequence[str]) -> str:
    """Return a line with the images that could not be read.

    Example:
        >>> describe_skipped(["a.jpg", "b.jpg"])
        'Skipped 2 unreadable images: a.jpg, b.jpg'
    """
    count = f"{len(names)} unreadable image{'s' * (len(names) > 1)}"
    return f"Skipped {count}: {', '.join(names)}"


def draw_first_batch(trainer):
    """Draw the next training images, as a PNG and for TensorBoard.

    The picture shows wrong labels, wrong pixel ranges, and augmentation that
    is too strong. Returns whether there are images to draw.
    """
    batches = trainer.train_batches(Share(trainer.loop.engine.num_replicas))
    with trainer.bad_examples.named_errors():
        images, labels, weights = next(iter(batches))
    is_readable = weights > 0
    if not tf.reduce_any(is_readable):
        advice = ""
        if trainer.dataset.maps:
            advice = "; look at the maps, and at --depth_unit and --max_depth"
        warnings.warn(
            "the first batch has no image that can be read and of which "
            f"something is known{advice}",
            stacklevel=2,
        )
        return False
    folder = trainer.run.folder
    folder.mkdir(parents=True, exist_ok=True)
    shown = (
        images[is_readable].numpy(),
        labels[is_readable].numpy(),
        trainer.dataset.class_names,
        trainer.recipe.normalization,
        folder / "first_batch.png",
    )
    if trainer.dataset.maps:
        plot_maps(*shown)
    else:
        plot_batch(*shown, trainer.dataset.has_several_labels)
    if "tensorboard" not in trainer.recipe.tracker_names:
        return True
    png = (folder / "first_batch.png").read_bytes()
    picture = tf.io.decode_png(png, channels=3)
    # The folder in which `keras.callbacks.TensorBoard` writes the metrics.
    place = os.fspath(folder / "tensorboard" / "train")
    with tf.summary.create_file_writer(place).as_default(trainer.loop.step):
        tf.summary.image("first_batch", picture[None])
    return True


RATE = "images_per_second"
FINAL = (
    *("loss", "accuracy", "val_loss", "val_accuracy"),
    *("val_mean_iou", "val_abs_rel", "val_delta1"),
)


def attention_pictures(trainer) -> AttentionPictures:
    """Return the callback that draws attention to the first test images."""
    recipe = trainer.recipe
    return AttentionPictures(
        first_eval_images(trainer, recipe.log_attention),
        trainer.run.folder / "tensorboard",
        class_names=trainer.dataset.class_names,
        activation=recipe.activation,
        normalization=recipe.normalization,
        # The weights that are evaluated, and saved in the end.
        averages=lambda: _averages(trainer),
        first_step=trainer.loop.step,
    )


def reconstructions(trainer) -> Reconstructions:
    """Return the callback that draws reconstructed test images."""
    return Reconstructions(
        first_eval_images(trainer, NUM_DRAWN),
        trainer.recipe.normalization,
        lambda: _averages(trainer),
        trainer.run.folder / "tensorboard",
        trainer.run.folder / "reconstructions.png",
    )


def _averages(trainer):
    """The averages of the weights, unless `WithWholeWeights` has set them."""
    loop = trainer.loop
    return None if loop.engine.saves_together else loop.optimizer.averages


def first_eval_images(trainer, count: int):
    """Return the first images of the evaluation split, preprocessed.

    Shapes: returns: (B, H, W, C), with at most `count` images.
    """
    images, _, counts, _ = next(
        read_batches(
            trainer.dataset,
            trainer.loop.model.input_shape[1:3],
            count,
            trainer.recipe.eval_preprocess,
            trainer.bad_examples,
        )
    )
    return images[counts]
