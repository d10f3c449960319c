"""Name what is in some images.

Example:
    python -m trainers.predict --run_dir=saved_models/digits IMAGE...
"""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from keras_vit.preprocessing import decode_predictions, read_image
from trainers.data.batches import make_prepare_one
from trainers.paths import as_path
from trainers.runs.command_line import start, user_errors
from trainers.runs.run import Run

FLAGS = flags.FLAGS


def load_image(
    path: str, input_shape: tuple, preprocess: str = ""
) -> np.ndarray:
    """Return the image in a file as the model of `input_shape` wants it.

    Shapes:
        returns: (H, W, C), floats in the range of the model.

    Args:
        path: Any image that Pillow reads; the first frame of several.
        input_shape: (H, W, C) of the model, C being 1 or 3.
        preprocess: What is done to the image, see `eval_batches`.

    Raises:
        ValueError: If the file is no image.
        OSError: If it cannot be read.
    """
    prepare, _ = make_prepare_one(preprocess, input_shape[:2])
    return prepare(read_image(path, input_shape[-1])).numpy()


def predict(
    model: keras.Model,
    paths: Sequence[str],
    class_names: Sequence[str],
    top: int = 5,
    preprocess: str = "",
) -> list[list[tuple[str, str, float]]]:
    """Return the likeliest classes of each image, with their probabilities.

    Args:
        model: Answers logits.
        paths: Image files.
        class_names: In the order of the logits.
        top: How many classes to return, at most.
        preprocess: See `load_image`.
    """
    shape = model.input_shape[1:]
    images = [load_image(path, shape, preprocess) for path in paths]
    logits = model.predict(np.stack(images), verbose=0)
    probabilities = tf.nn.softmax(logits.astype("float32"))
    return decode_predictions(probabilities, top, class_names)


def main(arguments):
    """Run the command."""
    with user_errors():
        paths = arguments[1:]
        if not paths:
            raise ValueError("Name one image file or more.")
        run = Run(as_path(FLAGS.run_dir))
        model, names = run.load_model(), run.load_class_names()
        rows = predict(model, paths, names, FLAGS.top, run.preprocess)
    for path, row in zip(paths, rows):
        scores = ", ".join(f"{name} {score:.1%}" for _, name, score in row)
        print(f"{path}: {scores}")


def define_flags():
    """Define the flags of this command."""
    flags.DEFINE_string("run_dir", None, "Folder of the run.", required=True)
    flags.DEFINE_integer(
        "top", 5, "How many classes to name, at most.", lower_bound=1
    )


if __name__ == "__main__":
    define_flags()
    start(main)
