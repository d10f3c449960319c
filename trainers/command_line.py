"""How a command starts, and how it ends on bad input."""

import contextlib
import sys
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import app, flags, logging


def start(main: Callable):
    """Parse the flags and call `main`; the way every command starts.

    Args:
        main: Takes the arguments that are no flags, program name first.
    """

    def checked(arguments):
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
            tf.get_logger().setLevel("WARNING")
        if keras.backend.backend() != "tensorflow":
            sys.exit(
                "Error: the trainers need the TensorFlow backend of Keras. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}"
            )
        main(arguments)

    app.run(checked)


@contextlib.contextmanager
def user_errors():
    """End the command with one line if what the user gave does not fit.

    Wraps only the steps that read what was given; an error in the work
    itself keeps its traceback.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"Error: {error}")


def refuse_arguments(arguments: list[str]):
    """Raise a ValueError for words on the command line that are no flags."""
    if len(arguments) > 1:
        raise ValueError(
            "Options are written --name=value. "
            f"Received: {' '.join(arguments[1:])!r}"
        )
