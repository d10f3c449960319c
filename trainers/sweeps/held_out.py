"""Images of the training split that are held out to choose a learning rate."""

import re
import warnings

import numpy as np

from trainers.data.bad_examples import BadExamples
from trainers.data.datasets import ImageDataset
from trainers.data.splits import count_examples, format_ranges, take_ranges


def hold_out(dataset: ImageDataset, held_out: str) -> tuple[str, str]:
    """Return the training split without its last images, and these images.

    Both are in the notation of TFDS. They name images by number, so that a
    sweep notices if the data set has changed.

    Args:
        dataset: The data set.
        held_out: The share of the images to hold out, such as "2%", or their
            number, such as "1000".

    Raises:
        ValueError: If `held_out` has another form, or no image would be left
            on one of the sides.
    """
    ranges = dataset.ranges(dataset.train_split)
    total = count_examples(ranges)
    number = _count_held_out(held_out, total)
    if not 0 < number < total:
        raise ValueError(
            "`held_out` must leave images on both sides. Received: "
            f"held_out={held_out!r}, {number:,} of the {total:,} images of "
            f"train_split={dataset.train_split!r}"
        )
    parts = (0, total - number), (total - number, total)
    train, rest = (format_ranges(take_ranges(ranges, *part)) for part in parts)
    return train, rest


def _count_held_out(held_out, total):
    if re.fullmatch(r"\d+(\.\d*)?%", held_out):
        return round(total * float(held_out[:-1]) / 100)
    if re.fullmatch(r"\d+", held_out):
        return int(held_out)
    raise ValueError(
        "`held_out` must be a share such as 2% or a number of images such as "
        f"1000. Received: held_out={held_out!r}"
    )


def check_classes_held_out(dataset: ImageDataset, split: str):
    """Raise a ValueError if the held-out images are all of one class.

    Records that are in the order of their classes cannot be divided by
    position. If there are fewer classes than expected, this is a warning.

    Args:
        dataset: The data set.
        split: The held-out images.
    """
    names = dataset.class_names
    if len(names) < 2 or dataset.has_several_classes(split):
        return
    with BadExamples(0).named_errors():
        labels = dataset.labels(split)
    found = np.unique(labels)
    if len(found) == 1:
        raise ValueError(
            "`held_out` must hold out images of several classes; shuffle the "
            "data set if it is in the order of its classes, or hold out more. "
            f"Received: {split!r}, {len(labels):,} images, all of class "
            f"{names[found[0]]!r}"
        )
    expected = len(names) * (1 - (1 - 1 / len(names)) ** len(labels))
    if len(found) < expected / 2:
        warnings.warn(
            f"The {len(labels):,} held-out images are of {len(found):,} of the "
            f"{len(names):,} classes. If the data set is in the order of its "
            "classes, shuffle it before the sweep.",
            stacklevel=2,
        )
