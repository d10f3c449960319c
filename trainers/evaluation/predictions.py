"""What a model answers on the images of a data set."""

import math
import sys
from collections.abc import Iterator

import keras
import numpy as np

from trainers.data.batches import BadExamples, eval_batches
from trainers.data.datasets import ImageDataset


def answers(
    model: keras.Model,
    dataset: ImageDataset,
    *,
    batch_size: int = 128,
    preprocess: str = "",
    bad_examples: BadExamples | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield images, what the model makes of them, and their labels.

    In the order of the eval split and in evaluation mode; images of weight 0
    are left out. A progress bar is shown.

    Shapes:
        yields images (b, H, W, C), answers (b, D) and labels (b, classes),
        b being batch_size at most.

    Args:
        model: Takes images of a fixed size, gives a vector for each.
        dataset: Its eval split is read.
        batch_size: Images at a time.
        preprocess: See `eval_batches`.
        bad_examples: See `eval_batches`; an unreadable image has weight 0.

    Raises:
        ValueError: If the model is not one for these images, an answer is not
            finite, or no image counts.
    """
    check_model(model, dataset)
    batches = eval_batches(
        dataset,
        image_size=model.input_shape[1:3],
        batch_size=batch_size,
        preprocess=preprocess,
        bad_examples=bad_examples,
    )
    num_batches = dataset.num_examples(dataset.eval_split) / batch_size
    # On a terminal the bar moves; a log gets a line now and then.
    bar = keras.utils.Progbar(
        math.ceil(num_batches), interval=0.1 if sys.stdout.isatty() else 30
    )
    done = num_answers = 0
    for done, (images, labels, weights) in enumerate(batches, 1):
        counts = weights.numpy() > 0
        found = model.predict_on_batch(images)[counts].astype("float32")
        if not np.isfinite(found).all():
            raise ValueError(
                "`model` must give finite answers. Received: NaN or infinity "
                f"in batch {done} of {dataset.name!r}"
            )
        bar.update(done, finalize=False)
        num_answers += len(found)
        if len(found):
            yield images.numpy()[counts], found, labels.numpy()[counts]
    bar.update(done, finalize=True)
    if not num_answers:
        raise ValueError(
            "`dataset` must have images with a label. Received: "
            f"{dataset.name!r}, split {dataset.eval_split!r}"
        )


def check_model(model: keras.Model, dataset: ImageDataset):
    """Raise a ValueError unless `model` gives a vector for each image.

    Args:
        model: The model.
        dataset: Whose images it takes.
    """
    _, height, width, channels = model.input_shape
    if None in (height, width) or len(model.output_shape) != 2:
        raise ValueError(
            "`model` must take images of a fixed size and give a vector for "
            f"each. Received: input_shape={model.input_shape}, "
            f"output_shape={model.output_shape}"
        )
    if channels != dataset.channels:
        raise ValueError(
            f"`model` takes images of {channels} channels; those of "
            f"{dataset.name!r} have {dataset.channels}."
        )
