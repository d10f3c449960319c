"""How a command starts, and how it ends on bad input."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import app, flags, logging

from trainers.data.bad_examples import DataError
from trainers.distribute.rendezvous import WorkerLostError
from trainers.loop.checkpoints import CheckpointError
from trainers.loop.loop import Interrupted, NonFiniteLossError


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
def user_errors(*more: type[Exception]):
    """End the command with one line if what the user gave does not fit.

    Wraps only the steps that read what was given; an error in the work
    itself keeps its traceback.

    Args:
        *more: Errors of this command that are for the user.
    """
    try:
        yield
    except (ValueError, OSError, CheckpointError, *more) as error:
        sys.exit(f"Error: {error}")


@contextlib.contextmanager
def stop_at_once(message: str = "Stopped before the first update."):
    """End the command by SIGTERM or Ctrl-C while there is nothing to save.

    Args:
        message: What it says then.
    """

    def stop(number, frame):
        # Unlike other errors nobody takes a SystemExit for his own.
        print(message, file=sys.stderr, flush=True)
        sys.exit(EXIT_CODES[Interrupted])

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


class StopSignals:
    """Notes that SIGTERM or Ctrl-C asked the process to save and stop.

    The second signal kills it at once, whatever it does.
    """

    def __init__(self):
        self._received = False
        self._heed(self._receive)

    def were_received(self) -> bool:
        """Return whether to save and stop."""
        return self._received

    def _receive(self, number, frame):
        self._received = True
        self._heed(signal.SIG_DFL)

    def _heed(self, handler):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)


@contextlib.contextmanager
def training_errors():
    """End the command with one line if the training could not be finished.

    The exit code says whether to start the same command again.
    """
    try:
        yield
    except tuple(EXIT_CODES) as error:
        sys.exit(report(error))


def exit_hard(error: Exception):
    """End the process from any thread, as a kill would, with its exit code."""
    os._exit(report(error))


def report(error: Exception) -> int:
    """Say why a training could not be finished; return the exit code."""
    print(f"Error: {error}", file=sys.stderr, flush=True)
    kinds = (kind for kind in EXIT_CODES if isinstance(error, kind))
    return EXIT_CODES[next(kinds)]


# Of a training that was not finished. 75 and 69 are what sysexits.h has for
# "try again" and "a service is not there".
EXIT_CODES = {
    NonFiniteLossError: 1,
    CheckpointError: 1,
    DataError: 1,
    OSError: 1,  # A folder that cannot be written, a disk that is full.
    WorkerLostError: 69,
    Interrupted: 75,
}


def refuse_arguments(arguments: list[str]):
    """Raise a ValueError for words on the command line that are no flags."""
    if len(arguments) > 1:
        raise ValueError(
            "Options are written --name=value. "
            f"Received: {' '.join(arguments[1:])!r}"
        )
