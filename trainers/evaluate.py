"""Evaluate a trained model on the test split of its data set, or on another.

Example:
    python -m trainers.evaluate --run_dir=saved_models/digits
    python -m trainers.evaluate --model=B/16-augreg-i1k --dataset=imagenet2012
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.evaluate")

import shlex
from collections.abc import Mapping

import numpy as np
from absl import flags

from trainers.commands import (
    open_source,
    refuse_arguments,
    run_main,
    stop_at_once,
    user_errors,
)
from trainers.data.datasets import ImageDataset
from trainers.data.labels import LabelOptions
from trainers.evaluation.evaluation import choose_folder, evaluate
from trainers.evaluation.image_predictions import (
    PREDICTIONS_NAME,
    NamedImage,
    OtherModel,
    read_image_predictions,
    read_predictions,
)
from trainers.evaluation.label_predictions import read_label_predictions
from trainers.evaluation.scores import MOST_CLASSES
from trainers.paths import as_path, parse_object, read_written
from trainers.training.model_card import MAP_FIGURES, describe_choice
from trainers.training.run_folder import NamedModel, RunFolder, is_outdated

FLAGS = flags.FLAGS
NUM_CLASSES_SHOWN = 20


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors():
        refuse_arguments(arguments)
        source, dataset = open_source(
            FLAGS.run_dir,
            FLAGS.model,
            FLAGS.dataset,
            FLAGS.data_dir,
            eval_split=FLAGS.eval_split,
            labels=LabelOptions(FLAGS.labels, FLAGS.label_separator),
            may_be_part=True,
        )
        folder = FLAGS.report_dir and as_path(FLAGS.report_dir)
        other = FLAGS.compare and read_other(FLAGS.compare, dataset)
        if FLAGS.dataset and not FLAGS.eval_split:
            print(describe_rest(dataset), end="")
        many = len(dataset.class_names) > NUM_CLASSES_SHOWN
        evaluate(
            source,
            dataset,
            batch_size=FLAGS.batch_size,
            preprocess=FLAGS.preprocess,
            max_bad_examples=FLAGS.max_bad_examples,
            report_dir=folder,
            other=other,
            patch_size=FLAGS.patch_size,
            merged_tokens=FLAGS.merged_tokens,
            show=lambda report: print_report(
                report, many, other and other.report
            ),
        )
    folder = choose_folder(
        source,
        dataset,
        folder,
        FLAGS.preprocess,
        FLAGS.patch_size,
        FLAGS.merged_tokens,
    )
    if folder:
        has_matrix = not dataset.has_several_labels
        if dataset.maps:
            has_matrix = bool(dataset.class_names)
        files = list_files(len(dataset.class_names), has_matrix)
        if dataset.maps:
            files.remove("predictions.png")
        print(f"Report: {folder}/{', '.join(files)}")


def describe_rest(dataset: ImageDataset) -> str:
    """Return a line if a folder or a table has more images; "" if not."""
    files = getattr(dataset.reader, "files", {})
    total = sum(map(len, files.values()))
    count = dataset.num_examples(dataset.eval_split)
    if count >= total:
        return ""
    return (
        f"Note: {count:,} of the {total:,} images are evaluated, those of the "
        f"split {dataset.eval_split!r}; --eval_split=all takes all of them.\n"
    )


def list_files(num_classes: int, has_matrix: bool = True) -> list[str]:
    """Return the names of the files of a report.

    Args:
        num_classes: Number of classes of the data set.
        has_matrix: Whether an image has one class, so that they are confused.
    """
    has_matrix &= num_classes <= MOST_CLASSES
    confusion = ["confusion.csv"] if has_matrix else []
    names = ["evaluation.html", "evaluation.json", *confusion]
    return [*names, PREDICTIONS_NAME, "predictions.png"]


def print_report(
    report: Mapping, has_many_classes: bool, other: Mapping | None = None
):
    """Print the figures of an evaluation."""
    # The page has precision and F1 of each class as well.
    kinds = ("accuracy/", "average_precision/", "iou/")
    kinds = () if has_many_classes else kinds
    hidden = ("model_digest", "chosen_on_split", "was_trained_on")
    shown = [name for name in report if name not in hidden]
    names = [x for x in shown if "/" not in x or x.startswith(kinds)]
    width = max(24, *map(len, names))
    for name in names:
        text = format_figure(report[name])
        if other and name in other:
            text += f"  (compared: {format_figure(other[name])})"
        print(f"{name:{width}s} {text}")
    if note := describe_choice(report):
        print(note)


def format_figure(value: float | int | str) -> str:
    """Return a figure of a report as text."""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def read_other(folder: str, dataset: ImageDataset) -> OtherModel:
    """Return an earlier evaluation, to compare with.

    Raises:
        ValueError: If there is none, or it is of other images.
    """
    path = as_path(folder) / "evaluation.json"
    if not path.is_file():
        raise ValueError(
            "`compare` must be a folder with an evaluation.json; evaluate that "
            f"run first. Received: compare={folder!r}"
        )
    report = read_written(path, parse_object, "evaluate that model again")
    images = dataset.name, dataset.eval_split
    if (report.get("dataset"), report.get("split")) != images:
        flags = shlex.join(
            [f"--dataset={images[0]}", f"--eval_split={images[1]}"]
        )
        raise ValueError(
            "`compare` must be an evaluation of the same images; evaluate that "
            f"model with {flags} "
            f"--report_dir=FOLDER first. Received: compare={folder!r}, which "
            f"is of {report.get('dataset')!r}, split {report.get('split')!r}"
        )
    if ("mean_average_precision" in report) != dataset.has_several_labels:
        raise ValueError(
            "`compare` must be an evaluation with as many labels an image, one "
            f"or several; evaluate that model again. Received: "
            f"compare={folder!r}"
        )
    source = RunFolder(as_path(folder))
    if not source.model_path.exists():  # A report outside of the run.
        source = NamedModel(report["model"])
    if is_outdated(report, source):
        raise ValueError(
            f"`compare` must be an evaluation of the model in {source}, which "
            "was trained since; evaluate that run again. Received: "
            f"compare={folder!r}"
        )
    if dataset.maps:
        if not any(name in report for name in MAP_FIGURES[dataset.maps.kind]):
            raise ValueError(
                "`compare` must be an evaluation of the same kind of maps. "
                f"Received: compare={folder!r}"
            )
    path = as_path(folder) / PREDICTIONS_NAME
    if not path.is_file():
        raise ValueError(
            f"`compare` must be a folder with {PREDICTIONS_NAME}; evaluate "
            f"that model again. Received: compare={folder!r}"
        )
    if dataset.maps:
        named = read_predictions(
            path, ["image"], lambda row: NamedImage(row["image"])
        )
        return OtherModel(report, named)
    names = dataset.class_names
    if not dataset.has_several_labels:
        return OtherModel(report, read_image_predictions(path, names))
    thresholds = [report.get(f"threshold/{name}", np.nan) for name in names]
    return OtherModel(report, read_label_predictions(path, names, thresholds))


if __name__ == "__main__":
    run_main(main)
