"""Probing a frozen model: its features, and the report of the probes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from keras_vit.models.features import without_head
from keras_vit.tables import pick
from trainers.data.bad_examples import BadExamples
from trainers.data.datasets import ImageDataset
from trainers.evaluation.predictions import predict_dataset
from trainers.evaluation.probes import PROBES, Features, ProbeChoices
from trainers.paths import Path, check_writable, naming_folder
from trainers.runs.named_model import NamedModel
from trainers.runs.run import Run, write_report


def probe(
    source: Run | NamedModel,
    dataset: ImageDataset,
    probes: Sequence[str] = tuple(PROBES),
    choices: ProbeChoices | None = None,
    *,
    batch_size: int = 128,
    preprocess: str | None = None,
    max_bad_examples: int = 0,
    report_dir: Path | None = None,
    show: Callable[[Mapping], None] = lambda report: None,
) -> dict:
    """Fit probes to one split, and return their accuracies on another.

    The images of both splits are preprocessed in the same way, without
    augmentation. The report is written to `probe.json`.

    Args:
        source: A finished run, or a model known by name.
        dataset: The data set; images of its train split must have one class.
        probes: Keys of PROBES.
        choices: The settings of the probes; None for those of the paper.
        batch_size: Number of images per batch.
        preprocess: The operations on images before the model, see
            `eval_batches`; None for those of the run.
        max_bad_examples: Number of unreadable images to skip at most, in both
            splits together.
        report_dir: Folder to write to; None for the folder of a run, and to
            write nothing for other models.
        show: Takes the report before it is written, so that it is not lost if
            that fails.

    Returns:
        model, dataset, train_split, eval_split, preprocess: The probed model
            and data.
        num_train, num_test, num_features: Numbers of images and of features.
        smallest_class: Number of training images of the smallest class.
        num_unreadable: Number of skipped images.
        probes: For each probe, the accuracies, their mean and deviation.

    Raises:
        ValueError: If a probe is unknown, the data do not fit the model, or
            more images than allowed cannot be read.
        OSError: If the report cannot be written.
    """
    choices = choices or ProbeChoices()
    functions = [pick(PROBES, name, "probes") for name in probes]
    check_has_train_split(dataset)
    folder = report_dir or source.folder
    if folder:  # An error before the work, not after it.
        check_writable(folder, "report_dir")
    if preprocess is None:
        preprocess = source.preprocess
    bad_examples = BadExamples(max_bad_examples)
    features = extract_features(
        without_head(source.load_model()),
        dataset,
        batch_size,
        preprocess,
        bad_examples,
    )
    report = {
        "model": str(source),
        "dataset": dataset.name,
        "train_split": dataset.train_split,
        "eval_split": dataset.eval_split,
        "preprocess": preprocess,
        "num_train": len(features.train),
        "num_test": len(features.test),
        "num_features": features.test.shape[1],
        "smallest_class": count_smallest_class(features),
        "num_unreadable": len(bad_examples.names),
        "probes": {
            name: summarize(accuracies)
            for function in functions
            for name, accuracies in function(features, choices).items()
        },
    }
    show(report)
    if folder:
        with naming_folder(folder, "report_dir"):
            write_report(folder, "probe.json", report)
    return report


def check_has_train_split(dataset: ImageDataset):
    """Raise a ValueError if there is no split to fit the probes to."""
    if dataset.train_split is None:
        raise ValueError(
            "`dataset` must have a train split to learn on, or `train_split` "
            f"name one. Received: dataset={dataset.name!r}"
        )


def count_smallest_class(features: Features) -> int:
    """Return the number of training images of the smallest class.

    Args:
        features: Features of both splits.
    """
    num_classes = features.test_truths.shape[1]
    counts = np.bincount(features.train_classes, minlength=num_classes)
    return int(counts.min())


def summarize(accuracies: list[float]) -> dict:
    """Return the accuracies, their mean, and the deviation if several."""
    many = len(accuracies) > 1
    return {
        "mean": float(np.mean(accuracies)),
        "deviation": float(np.std(accuracies, ddof=1)) if many else None,
        "accuracies": accuracies,
    }


def extract_features(
    model: keras.Model,
    dataset: ImageDataset,
    batch_size: int = 128,
    preprocess: str = "",
    bad_examples: BadExamples | None = None,
) -> Features:
    """Return the features of the images of both splits.

    Args:
        model: Returns one vector per image.
        dataset: The data set of the images.
        batch_size: Number of images per batch.
        preprocess: See `eval_batches`.
        bad_examples: Records the images that cannot be read, which are
            skipped; None stops at the first one.

    Raises:
        ValueError: If an image of the train split has several classes.
    """

    def read(split: str, describe: Callable):
        part = dataclasses.replace(dataset, eval_split=split)
        pairs = [
            (features, describe(labels > 0))
            for _, features, labels, *_ in predict_dataset(
                model,
                part,
                batch_size=batch_size,
                preprocess=preprocess,
                bad_examples=bad_examples,
            )
        ]
        return [np.concatenate(column) for column in zip(*pairs)]

    return Features(
        *read(dataset.train_split, only_class),
        *read(dataset.eval_split, lambda truths: truths),
    )


def only_class(truths: np.ndarray) -> np.ndarray:
    """Return the one class of each row of `truths`.

    Raises:
        ValueError: If a row has no class or several.
    """
    counts = truths.sum(-1)
    if (counts != 1).any():
        raise ValueError(
            "`dataset` must have one class for each image of its train split. "
            f"Received: an image with {counts[counts != 1][0]}"
        )
    return truths.argmax(-1)
