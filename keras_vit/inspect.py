"""Look into a model: `python -m keras_vit.inspect MODEL IMAGE... --out=DIR`.

Writes the pictures of `keras_vit.analysis.plots` and a page to explore with,
report.html.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.analysis import Inspection, inspect_model
from keras_vit.convert import open_model
from keras_vit.inspect_checkpoint import add_hints, parse_image_size
from keras_vit.models import VisionTransformer
from keras_vit.preprocessing import (
    imagenet_classes,
    preprocess_input,
    read_image,
)

# Of the test split of a run, when no image is named.
NUM_IMAGES = 4


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model that is looked into, and how it wants its images.

    Shapes:
        `read` returns (H, W, C), as the model reads it.

    Args:
        name: What it is called.
        model: The model.
        read: Returns the image in a file.
        preprocess: What is done to the images of a data set, see
            `trainers.batches.eval_batches`.
        class_names: Names of the classes, or None.
        activation: What makes probabilities of its logits.
        value_range: What it reads for black and for white.
    """

    name: str
    model: VisionTransformer
    read: Callable[[str], np.ndarray]
    preprocess: str = ""
    class_names: Sequence[str] | None = None
    activation: str = "softmax"
    value_range: tuple[float, float] = (-1.0, 1.0)


def open_subject(source: str, **hints) -> Subject:
    """Open the folder of a run, a `.keras` file, a checkpoint or a nickname.

    Images for a run are made ready as they were for its evaluation; those for
    other models are resized as a whole and scaled to [-1, 1].

    Args:
        source: Path or name.
        **hints: See `keras_vit.convert.open_model`; of no use for a run.

    Raises:
        ValueError: If it holds no VisionTransformer.
    """
    if is_run(source):
        return _open_run(source)
    model = open_model(source, **hints)
    config = model.config

    def read(path):
        pixels = read_image(path, config.channels, config.image_size)
        return preprocess_input(pixels)

    class_names = None
    if config.num_classes == len(imagenet_classes()):
        # "tench, Tinca tinca": the first word for it will do.
        class_names = [name.split(",")[0] for _, name in imagenet_classes()]
    name = pathlib.Path(source).name
    return Subject(name, model, read, class_names=class_names)


def is_run(source: str) -> bool:
    """Return whether there is the folder of a run of the trainers.

    Args:
        source: Path or name.
    """
    return os.path.isfile(os.path.join(source, "recipe.json"))


def _open_run(folder):
    # The trainers need TensorFlow; what else is looked into does not.
    from trainers.batches import make_prepare_one
    from trainers.predict import load_image
    from trainers.runs import Run

    run = Run(pathlib.Path(folder))
    model = run.load_model()
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"{folder} holds no VisionTransformer but a {type(model).__name__}."
        )
    shape, preprocess = model.input_shape[1:], run.preprocess
    _, value_range = make_prepare_one(preprocess, shape[:2])
    return Subject(
        run.folder.absolute().name,
        model,
        lambda path: load_image(path, shape, preprocess),
        preprocess,
        run.load_class_names(),
        run.load_recipe().loss,
        value_range,
    )


def take_images(
    run_dir: str, subject: Subject, count: int
) -> tuple[np.ndarray, list[str]]:
    """Return the first test images of a run as a model reads them, and names.

    Args:
        run_dir: The run whose data set is read.
        subject: Who looks at them; need not be the model of the run.
        count: How many images.
    """
    from trainers.answers import check_model
    from trainers.batches import eval_batches
    from trainers.runs import open_source

    _, dataset = open_source(run_dir=run_dir, eval_split=None)
    check_model(subject.model, dataset)
    batches = eval_batches(
        dataset,
        image_size=subject.model.input_shape[1:3],
        batch_size=count,
        preprocess=subject.preprocess,
    )
    images, labels, _ = next(iter(batches))
    classes = np.argmax(labels, axis=-1)
    return images.numpy(), [
        f"test image {i + 1}: {dataset.class_names[label]}"
        for i, label in enumerate(classes)
    ]
