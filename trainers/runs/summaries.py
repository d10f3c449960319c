"""The header, the first batch and the final table of a training run."""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.preprocessing.description import Normalization
from keras_vit.progress import format_seconds
from trainers.paths import as_path
from trainers.runs.pictures import plot_batch


def header(
    *,
    model: str,
    num_parameters: int,
    num_trained: int,
    flops_per_image: int,
    image_size: tuple[int, int],
    dataset: str,
    strategy: str,
    num_devices: int,
    precision: str,
    batch_size: int,
    first_step: int,
    total_steps: int,
) -> str:
    """Return the line that describes a run at its start.

    Args:
        model: Name of the model.
        num_parameters: Number of parameters of the model.
        num_trained: Number of the parameters that are trained.
        flops_per_image: FLOPs of a forward pass, see `flops.count_flops`.
        image_size: (height, width) in pixels.
        dataset: Name of the data set.
        strategy: Name of the strategy.
        num_devices: Number of devices that share the batch.
        precision: Precision of training.
        batch_size: Number of images per update, over all devices.
        first_step: Number of updates before this start.
        total_steps: Total number of updates.
    """
    height, width = image_size
    devices = "device" if num_devices == 1 else "devices"
    trained = ""
    if num_trained < num_parameters:
        trained = f"{scale(num_trained).strip()} of "
    parts = [
        f"{model}, {trained}{scale(num_parameters)} parameters"
        f"{' trained' if trained else ''}, "
        f"{scale(flops_per_image)}FLOP an image of {height}x{width}",
        dataset,
        f"{strategy} on {num_devices} {devices}, {precision}",
        f"updates {first_step:,} to {total_steps:,}, "
        f"{batch_size:,} images each",
    ]
    return "; ".join(parts)


def scale(number: float) -> str:
    """Return a number with three digits and k, M, G or T.

    Example:
        >>> scale(85_800_000), scale(999_999), scale(12)
        ('85.8 M', '1.00 M', '12 ')
    """
    if number < 1000:
        return f"{number:.0f} "
    for prefix in PREFIXES:
        number /= 1000
        if number < 999.5 or prefix == PREFIXES[-1]:
            break
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f} {prefix}"


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
    judged = [row for row in rows if "val_accuracy" in row]
    if judged:
        best = max(
            judged,
            key=lambda row: (row["val_accuracy"], -row.get("val_loss", 0)),
        )
        figure = f"{best['val_accuracy']:.4f} at update {best['step']:,.0f}"
        if keep_best:
            figure += "; this model is kept"
        elif best["step"] != rows[-1]["step"]:
            figure += "; not kept, the model is the last one"
        cells.append(("best val_accuracy", figure))
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


def write_first_batch(
    images,
    labels,
    class_names: Sequence[str],
    normalization: Normalization,
    tensorboard_dir: str | os.PathLike,
    png_path: str | os.PathLike,
    step: int = 0,
):
    """Draw the images of a batch, as a PNG and for TensorBoard.

    The picture shows wrong labels, wrong pixel ranges, and augmentation that
    is too strong.

    Shapes:
        images: (B, H, W, C) with 1 or 3 channels, as the model reads them.
        labels: (B, classes), shares.

    Args:
        images: As the model receives them.
        labels: Of each image.
        class_names: In the order of the labels.
        normalization: Mean and deviation of the images.
        tensorboard_dir: The folder of `keras.callbacks.TensorBoard`.
        png_path: The PNG file to write.
        step: Number of updates so far.
    """
    png_path = as_path(png_path)
    plot_batch(
        np.asarray(images),
        np.asarray(labels),
        class_names,
        normalization,
        png_path,
    )
    picture = tf.io.decode_png(png_path.read_bytes(), channels=3)
    # The folder in which the callback writes the training metrics.
    folder = os.path.join(tensorboard_dir, "train")
    with tf.summary.create_file_writer(folder).as_default(step):
        tf.summary.image("first_batch", picture[None])


PREFIXES = "kMGT"
RATE = "images_per_second"
FINAL = ("loss", "accuracy", "val_loss", "val_accuracy")
