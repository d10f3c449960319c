"""Evaluate a trained model on the test split of its data set.

Example:
    python -m trainers.evaluate --run_dir=saved_models/digits
"""

import json
import pathlib

import numpy as np
import tensorflow as tf
from absl import flags

from trainers.command_line import refuse_arguments, start, user_errors
from trainers.datasets import ImageDataset, eval_batches, open_dataset
from trainers.files import write_atomically
from trainers.pictures import plot_predictions
from trainers.runs import Run

FLAGS = flags.FLAGS
NUM_PICTURES = 32


def evaluate(
    run: Run, dataset: ImageDataset, batch_size: int = 128
) -> dict[str, float]:
    """Return the accuracy of a run on a data set, and draw some examples.

    Writes into the folder of the run `evaluation.json`, the report, and
    `predictions.png`: what the model took some images for, mistakes first.

    Args:
        run: A finished run.
        dataset: Its eval split is used; must have the classes of the run.
        batch_size: Images at a time.

    Returns:
        accuracy, num_examples, and `accuracy/CLASS` for each class.

    Raises:
        ValueError: If the classes are not those of the run.
    """
    model = run.load_model()
    names = run.load_class_names()
    if dataset.class_names != names:
        raise ValueError(
            "`dataset` must have the classes that the model was trained on. "
            f"Received: {dataset.name!r}, classes {dataset.class_names[:5]} "
            f"..., trained on {names[:5]} ..."
        )
    batches = eval_batches(
        dataset, image_size=model.input_shape[1:3], batch_size=batch_size
    )
    logits, labels, pictures = [], [], []
    for batch_images, batch_labels, weights in batches:
        counts = weights.numpy() > 0
        answers = model.predict_on_batch(batch_images)[counts]
        truths = np.argmax(batch_labels.numpy(), -1)[counts]
        logits.append(answers.astype("float32"))
        labels.append(truths)
        pictures += zip(batch_images.numpy()[counts], answers, truths)
        # Mistakes first; not all images of a large split fit into memory.
        pictures.sort(key=lambda row: np.argmax(row[1]) == row[2])
        del pictures[NUM_PICTURES:]
    logits, labels = np.concatenate(logits), np.concatenate(labels)
    hits = np.argmax(logits, -1) == labels
    draw_pictures(pictures, names, run.folder / "predictions.png")
    report = {
        "accuracy": float(np.mean(hits)),
        "num_examples": len(hits),
        **{
            f"accuracy/{name}": float(np.mean(hits[labels == label]))
            for label, name in enumerate(names)
            if np.any(labels == label)
        },
    }
    write_atomically(
        run.folder / "evaluation.json", json.dumps(report, indent=2)
    )
    return report


def draw_pictures(pictures, names, path):
    """Draw (image, logits, label) rows with what the model says of them."""
    images, logits, labels = zip(*pictures)
    probabilities = tf.nn.softmax(np.float32(logits)).numpy()
    guesses = np.argmax(probabilities, -1)
    plot_predictions(
        images,
        [names[label] for label in labels],
        [names[guess] for guess in guesses],
        np.max(probabilities, -1),
        path,
    )


def main(arguments):
    """Run the command."""
    with user_errors():
        refuse_arguments(arguments)
        run = Run(pathlib.Path(FLAGS.run_dir))
        recipe = run.load_recipe()
        dataset = open_dataset(
            FLAGS.dataset or recipe.dataset, FLAGS.data_dir or recipe.data_dir
        )
        report = evaluate(run, dataset, FLAGS.batch_size)
    for name, value in report.items():
        print(
            f"{name:24s} " + (f"{value:.4f}" if "acc" in name else f"{value}")
        )
    print(f"Examples: {run.folder / 'predictions.png'}")


def define_flags():
    """Define the flags of this command."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.", required=True)
    flags.DEFINE_string("dataset", None, "Data set. Default: that of the run.")
    flags.DEFINE_string(
        "data_dir", None, "Where tensorflow-datasets keeps its data sets."
    )
    flags.DEFINE_integer("batch_size", 128, "Images at a time.", lower_bound=1)


if __name__ == "__main__":
    define_flags()
    start(main)
