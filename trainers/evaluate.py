"""Evaluate a trained model on the test split of its data set, or of any.

Example:
    python -m trainers.evaluate --run_dir=saved_models/digits
    python -m trainers.evaluate --model=B/16-augreg-i1k --dataset=imagenet2012
"""

import keras
import numpy as np
from absl import flags

from trainers.augment.augmentation import parse_augmentation
from trainers.data.bad_examples import BadExamples
from trainers.data.datasets import ImageDataset
from trainers.evaluation.predictions import predict_dataset, to_probabilities
from trainers.evaluation.scores import Tally
from trainers.paths import Path, as_path
from trainers.runs import run as runs
from trainers.runs.command_line import refuse_arguments, start, user_errors
from trainers.runs.pictures import plot_predictions
from trainers.runs.run import NamedModel, Run, open_source, write_report

FLAGS = flags.FLAGS
NUM_PICTURES = 32
NUM_CLASSES_SHOWN = 20


def evaluate(
    source: Run | NamedModel,
    dataset: ImageDataset,
    *,
    batch_size: int = 128,
    preprocess: str | None = None,
    max_bad_examples: int = 0,
    report_dir: Path | None = None,
) -> dict[str, float | int | str]:
    """Return how right a model is on a data set, and draw some examples.

    Writes `evaluation.json`, the report, and `predictions.png`: what the
    model took some images for, mistakes first. An image may have several
    right classes, see `judge`; those without any do not count.

    Args:
        source: A finished run, or a model known by name.
        dataset: Its eval split is used; must have the classes of the model.
        batch_size: Images at a time.
        preprocess: What is done to the images, see `eval_batches`; None for
            what the run did.
        max_bad_examples: Unreadable images that are left out.
        report_dir: Where to write; None for the folder of a run, and nowhere
            for other models.

    Returns:
        model, dataset, split, preprocess: What was evaluated.
        num_left_out: Images that do not count: they have no label or cannot
            be read.
        num_unreadable: Those of them that cannot be read.
        num_examples, accuracy, ...: See `Tally.report`.

    Raises:
        ValueError: If the classes are not those of the model, or more images
            than allowed cannot be read.
    """
    if preprocess is None:
        preprocess = source.preprocess
    names = dataset.class_names
    check_classes(source, names, dataset)
    model = source.load_model()
    check_logits(model, names, dataset)
    value_range = parse_augmentation(
        preprocess, model.input_shape[1:3], "preprocess"
    ).value_range
    tally, pictures = Tally(names, source.activation), []
    bad_examples = BadExamples(max_bad_examples)
    for images, logits, labels in predict_dataset(
        model,
        dataset,
        batch_size=batch_size,
        preprocess=preprocess,
        bad_examples=bad_examples,
    ):
        truths = labels > 0
        hits = tally.add(logits, truths)
        # Of several right classes the one that the model is nearest to.
        nearest = np.argmax(np.where(truths, logits, -np.inf), -1)
        pictures += zip(images, logits, nearest, hits)
        # Mistakes first; not all images of a large split fit into memory.
        pictures.sort(key=lambda row: row[-1])
        del pictures[NUM_PICTURES:]
    found = tally.report()
    num_images = dataset.num_examples(dataset.eval_split)
    report = {
        "model": str(source),
        "dataset": dataset.name,
        "split": dataset.eval_split,
        "preprocess": preprocess,
        "num_left_out": num_images - found["num_examples"],
        "num_unreadable": len(bad_examples.names),
        **found,
    }
    folder = report_dir or source.folder
    if folder:
        write_report(folder, "evaluation.json", report)
        draw_pictures(
            pictures,
            names,
            source.activation,
            value_range,
            folder / "predictions.png",
        )
    return report


def check_classes(source, names, dataset):
    """Raise a ValueError if a run was trained on classes of other names."""
    trained_on = source.load_class_names()
    if trained_on not in (None, names):
        raise ValueError(
            "`dataset` must have the classes that the model was trained on. "
            f"Received: {dataset.name!r}, classes {names[:5]} ..., trained on "
            f"{trained_on[:5]} ..."
        )


def check_logits(model: keras.Model, names: list[str], dataset: ImageDataset):
    """Raise a ValueError unless `model` answers a logit for each class."""
    if model.output_shape[1:] != (len(names),):
        raise ValueError(
            f"`model` must answer one logit for each of the {len(names)} "
            f"classes of {dataset.name!r}. "
            f"Received: output_shape={model.output_shape}"
        )
    activation = getattr(model.layers[-1], "activation", None)
    if activation is keras.activations.softmax or isinstance(
        model.layers[-1], keras.layers.Softmax
    ):
        raise ValueError(
            "`model` must answer logits, not probabilities. Received: a "
            f"softmax in its last layer {model.layers[-1].name!r}"
        )


def draw_pictures(pictures, names, activation, value_range, path):
    """Draw (image, logits, label, hit) rows with the predicted classes."""
    images, logits, labels, *_ = zip(*pictures)
    probabilities = to_probabilities(np.stack(logits), activation)
    guesses = np.argmax(probabilities, -1)
    plot_predictions(
        images,
        [names[label] for label in labels],
        [names[guess] for guess in guesses],
        np.max(probabilities, -1),
        value_range,
        path,
    )


def main(arguments):
    """Run the command."""
    with user_errors():
        refuse_arguments(arguments)
        source, dataset = open_source(
            FLAGS.run_dir,
            FLAGS.model,
            FLAGS.dataset,
            FLAGS.data_dir,
            eval_split=FLAGS.eval_split,
        )
        folder = FLAGS.report_dir and as_path(FLAGS.report_dir)
        report = evaluate(
            source,
            dataset,
            batch_size=FLAGS.batch_size,
            preprocess=FLAGS.preprocess,
            max_bad_examples=FLAGS.max_bad_examples,
            report_dir=folder,
        )
    many = len(dataset.class_names) > NUM_CLASSES_SHOWN
    for name, value in report.items():
        if not (many and name.startswith("accuracy/")):
            text = f"{value:.4f}" if isinstance(value, float) else value
            print(f"{name:24s} {text}")
    folder = folder or source.folder
    if folder:
        print(f"Report and examples: {folder}/evaluation.json, predictions.png")


if __name__ == "__main__":
    runs.define_flags()
    flags.adopt_module_key_flags(runs)  # So that --help lists them.
    start(main)
