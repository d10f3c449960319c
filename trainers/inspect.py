"""Inspect the model of a run: where it looks, and what it has learned.

Example:
    python -m trainers.inspect --run_dir=saved_models/digits
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.inspect")

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from absl import flags

from keras_vit.analysis.gallery import (
    NamedImages,
    Subject,
    check_inputs,
    load_images,
    local_folder,
    name_apart,
    write_gallery,
)
from keras_vit.inspect import open_subject as open_file
from keras_vit.model_files import RUN_MODEL, is_run
from keras_vit.models import DensePredictor, VisionTransformer
from trainers.augment.augmentation import line_of
from trainers.commands import open_source, run_main, stop_at_once, user_errors
from trainers.data.batches import read_batches
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.data.readers.image_files import ImageFiles
from trainers.data.readers.image_paths import printable
from trainers.evaluation.predictions import check_images_fit, make_load_image
from trainers.models.factory import encoder_of
from trainers.models.initial_model import is_run_folder
from trainers.paths import as_path
from trainers.training.run_folder import RunFolder, check_outside

FLAGS = flags.FLAGS
NUM_IMAGES = 4


def inspect_run(
    run_dir: str,
    paths: Sequence[str] = (),
    out_dir: str | None = None,
    compare: str | None = None,
    num_images: int = NUM_IMAGES,
    suffix: str = ".png",
    max_bad_examples: int = 0,
) -> list[pathlib.Path]:
    """Write the pictures and the page of the model of a run.

    Args:
        run_dir: The folder of the run.
        paths: Image files. Default: the first test images of the run.
        out_dir: The folder to write to. Default: `inspection` in `run_dir`.
        compare: A second model: the folder of another run, or a model as in
            `python -m keras_vit.inspect`.
        num_images: Number of test images.
        suffix: Format of the pictures: ".png" or ".svg".
        max_bad_examples: Number of unreadable test images to skip.

    Returns:
        The files that were written.

    Raises:
        ValueError: If models, images or options do not fit each other.
        OSError: If a file cannot be read or written.
        ImportError: If an optional package is missing.
    """
    if out_dir is None and "://" in run_dir:
        raise ValueError(
            "--out must be given for a run that is not on this machine. "
            f"Received: run_dir={run_dir!r}"
        )
    is_chosen = out_dir is not None
    out_dir = out_dir or str(as_path(run_dir) / "inspection")
    check_inputs(paths, out_dir)
    if compare and os.path.basename(compare) == RUN_MODEL:
        folder = os.path.dirname(compare) or "."
        compare = folder if is_run(folder) else compare
    sources, subjects = [run_dir], [open_run(run_dir)]
    if is_chosen:
        recipe = RunFolder(as_path(run_dir)).load_recipe()
        check_outside(local_folder(out_dir), recipe.dataset, "out")
    if compare:
        open_other = open_run if is_run_folder(compare) else open_file
        sources.append(compare)
        subjects.append(open_other(compare))
    subjects = name_apart(subjects, sources)
    if paths:
        images = [load_images(subject, paths) for subject in subjects]
    else:
        _, dataset = open_source(run_dir)
        dataset = dataclasses.replace(dataset, needs_labels=False)
        images = [
            first_test_images(
                dataset,
                subject,
                num_images,
                operations_for(subject, source),
                BadExamples(max_bad_examples),
            )
            for subject, source in zip(subjects, sources)
        ]
    return write_gallery(subjects, images, out_dir, suffix)


def operations_for(subject: Subject, source: str) -> str:
    """Return the operations on images of a run or of a model file."""
    if is_run_folder(source):
        return RunFolder(as_path(source)).preprocess
    config = subject.model.config
    return line_of(config.preprocessing, config.image_size)


def open_run(run_dir: str) -> Subject:
    """Open the model of a run; images are preprocessed as in its evaluation.

    Of a model with an answer for each pixel, this is the encoder.
    """
    run = RunFolder(as_path(run_dir))
    model, class_names = run.load_model(), run.load_class_names()
    if isinstance(model, DensePredictor):
        model, class_names = encoder_of(model), None
        print(
            f"{run_dir} answers for each pixel: its encoder is shown. "
            "trainers.evaluate shows the answers."
        )
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"{run_dir} must contain a VisionTransformer. "
            f"Received: {type(model).__name__}"
        )
    return Subject(
        run.name,
        model,
        make_load_image(model.input_shape[1:], run.preprocess, run.pixel_range),
        class_names,
        run.activation,
        run.load_recipe().normalization,
    )


def first_test_images(
    dataset: ImageDataset,
    subject: Subject,
    count: int,
    preprocess: str,
    bad_examples: BadExamples,
) -> NamedImages:
    """Return the first test images, preprocessed for a model.

    The model may be of another run than the data set.
    """
    if not dataset.maps:
        check_images_fit(subject.model, dataset)
    size = subject.model.input_shape[1:3]
    batches = read_batches(dataset, size, count, preprocess, bad_examples)
    images, labels, counts, files = next(batches)
    real = np.flatnonzero(counts)  # The last batch is padded.
    if not real.size:
        raise ValueError(
            f"None of the first {count} test images of {dataset.name!r} can be "
            "read."
        )
    names = []
    for i in real:
        name = f"test image {i + 1}"
        if isinstance(dataset.reader, ImageFiles):
            name = os.path.basename(printable(files[i]))
        if dataset.maps:
            names.append(name)
            continue
        # Of several labels, one that is not known is NaN.
        classes = [
            dataset.class_names[j] for j in np.flatnonzero(labels[i] == 1)
        ]
        names.append(f"{name}: {', '.join(classes) or 'no label'}")
    return NamedImages(images[real], names)


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors(ImportError):
        paths = arguments[1:]
        if FLAGS.num_images is not None and paths:
            raise ValueError(
                "--num_images is for test images, but image files were passed."
            )
        for path in inspect_run(
            FLAGS.run_dir,
            paths,
            FLAGS.out,
            FLAGS.compare,
            FLAGS.num_images or NUM_IMAGES,
            f".{FLAGS.format}",
            FLAGS.max_bad_examples,
        ):
            print(path)


if __name__ == "__main__":
    run_main(main)
