"""Judge the features of a model: few-shot regression and nearest neighbours.

The features are what goes into the classifier; nothing is trained.

Example:
    python -m trainers.probe --run_dir=saved_models/digits
    python -m trainers.probe --model=B/16-augreg --dataset=cifar10
"""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np
from absl import flags

from keras_vit.models.features import without_head
from keras_vit.tables import pick
from trainers.data.datasets import ImageDataset
from trainers.evaluation.predictions import predict_dataset
from trainers.evaluation.probes import PROBES, Features, ProbeChoices
from trainers.paths import Path, as_path
from trainers.runs import run as runs
from trainers.runs.command_line import refuse_arguments, start, user_errors
from trainers.runs.run import NamedModel, Run, open_source, write_report

FLAGS = flags.FLAGS


def probe(
    source: Run | NamedModel,
    dataset: ImageDataset,
    probes: Sequence[str] = tuple(PROBES),
    choices: ProbeChoices | None = None,
    *,
    batch_size: int = 128,
    preprocess: str | None = None,
    report_dir: Path | None = None,
) -> dict:
    """Return what the probes find, learning on one split, judged on the other.

    The images of both splits are prepared alike, without augmentation. The
    report is written as `probe.json`.

    Args:
        source: A finished run, or a model known by name.
        dataset: Its train split must have one class an image.
        probes: Keys of PROBES.
        choices: What is probed; None for the numbers of the paper.
        batch_size: Images at a time.
        preprocess: What is done to the images, see `eval_batches`; None for
            what the run did.
        report_dir: Where to write; None for the folder of a run, and nowhere
            for other models.

    Returns:
        model, dataset, train_split, eval_split, preprocess: What was probed.
        num_train, num_test, num_features: Images, and the size of features.
        probes: For each probe the accuracies, their mean and deviation.

    Raises:
        ValueError: If a probe is unknown, or the model or the data do not fit.
    """
    choices = choices or ProbeChoices()
    functions = [pick(PROBES, name, "probes") for name in probes]
    if dataset.train_split is None:
        raise ValueError(
            "`dataset` must have a train split to learn on, or `train_split` "
            f"name one. Received: dataset={dataset.name!r}"
        )
    if preprocess is None:
        preprocess = source.preprocess
    body = without_head(source.load_model())
    features = extract(body, dataset, batch_size, preprocess)
    report = {
        "model": str(source),
        "dataset": dataset.name,
        "train_split": dataset.train_split,
        "eval_split": dataset.eval_split,
        "preprocess": preprocess,
        "num_train": len(features.train),
        "num_test": len(features.test),
        "num_features": features.test.shape[1],
        "probes": {
            name: summarize(accuracies)
            for function in functions
            for name, accuracies in function(features, choices).items()
        },
    }
    folder = report_dir or source.folder
    if folder:
        write_report(folder, "probe.json", report)
    return report


def summarize(accuracies: list[float]) -> dict:
    """Return the accuracies, their mean and deviation; one has none."""
    many = len(accuracies) > 1
    return {
        "mean": float(np.mean(accuracies)),
        "deviation": float(np.std(accuracies, ddof=1)) if many else None,
        "accuracies": accuracies,
    }


def extract(
    model: keras.Model,
    dataset: ImageDataset,
    batch_size: int = 128,
    preprocess: str = "",
) -> Features:
    """Return what the model makes of the images of both splits.

    Args:
        model: Gives a vector for each image.
        dataset: Where they come from.
        batch_size: Images at a time.
        preprocess: What is done to the images, see `eval_batches`.

    Raises:
        ValueError: If an image of the train split has several classes.
    """

    def read(split: str, describe: Callable):
        part = dataclasses.replace(dataset, eval_split=split)
        pairs = [
            (features, describe(labels > 0))
            for _, features, labels in predict_dataset(
                model, part, batch_size=batch_size, preprocess=preprocess
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
        ValueError: If a row has none or several.
    """
    counts = truths.sum(-1)
    if (counts != 1).any():
        raise ValueError(
            "`dataset` must have one class for each image of its train split. "
            f"Received: an image with {counts[counts != 1][0]}"
        )
    return truths.argmax(-1)


def parse_numbers(argument: str, words: list[str]) -> tuple[int, ...]:
    """Return the numbers that a flag lists."""
    try:
        return tuple(int(word) for word in words)
    except ValueError:
        raise ValueError(
            f"`{argument}` must be whole numbers, separated by commas. "
            f"Received: {argument}={','.join(words)}"
        ) from None


def main(arguments):
    """Run the command."""
    with user_errors():
        refuse_arguments(arguments)
        choices = ProbeChoices(
            parse_numbers("shots", FLAGS.shots),
            FLAGS.num_seeds,
            parse_numbers("neighbors", FLAGS.neighbors),
        )
        source, dataset = open_source(
            FLAGS.run_dir,
            FLAGS.model,
            FLAGS.dataset,
            FLAGS.data_dir,
            train_split=FLAGS.train_split,
            eval_split=FLAGS.eval_split,
        )
        report = probe(
            source,
            dataset,
            FLAGS.probes,
            choices,
            batch_size=FLAGS.batch_size,
            preprocess=FLAGS.preprocess,
            report_dir=FLAGS.report_dir and as_path(FLAGS.report_dir),
        )
    print(
        f"{report['model']} on {report['dataset']}: learned on "
        f"{report['num_train']:,} images, judged on {report['num_test']:,}; "
        f"{report['num_features']} features\n"
        f"{'probe':14s} accuracy  deviation"
    )
    for name, row in report["probes"].items():
        has_deviation = row["deviation"] is not None
        deviation = f"{row['deviation']:9.4f}" if has_deviation else ""
        print(f"{name:14s} {row['mean']:8.4f}  {deviation}".rstrip())


def define_flags():
    """Define the flags of this command."""
    runs.define_flags()
    flags.adopt_module_key_flags(runs)  # So that --help lists them.
    default = ProbeChoices()
    flags.DEFINE_list(
        "probes", list(PROBES), f"Comma-separated, of {', '.join(PROBES)}."
    )
    flags.DEFINE_list(
        "shots",
        list(map(str, default.shots)),
        "Images of a class that few_shot learns from; a class with fewer "
        "gives those it has.",
    )
    flags.DEFINE_integer(
        "num_seeds", default.num_seeds, "Draws of the images of few_shot."
    )
    flags.DEFINE_list(
        "neighbors",
        list(map(str, default.neighbors)),
        "Numbers of neighbours that vote in knn, such as 10,20,100,200.",
    )
    flags.DEFINE_string(
        "train_split",
        None,
        "Split to learn on, or a slice of one. Default: that of the data set.",
    )


if __name__ == "__main__":
    define_flags()
    start(main)
