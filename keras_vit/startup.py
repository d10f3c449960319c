"""The start of `python -m` commands: quiet imports, errors in one line.

Python imports the package before the command itself, so this code runs before
TensorFlow is imported, which takes seconds. It does not affect programs that
import the package as a library.
"""

import contextlib
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

from keras_vit.interrupts import is_own_command

# Lines that TensorFlow writes to the standard error at each start, on a machine
# without a GPU, before its own settings about logging apply.
NOISE = (
    "^WARNING: All log messages before absl::InitializeLog"
    "|^I[0-9]{4} "
    "|^To enable the following instructions"
    "|^E[0-9]{4} .*cuInit.*(UNKNOWN ERROR|CUDA_ERROR_NO_DEVICE)"
)


IS_QUIET = (
    is_own_command(sys.argv, sys.orig_argv)
    and "TF_CPP_MIN_LOG_LEVEL" not in os.environ
)


def prepare_command():
    """Import Keras for a command, without the start-up messages of TensorFlow.

    Does nothing in other programs. To see every message, set
    TF_CPP_MIN_LOG_LEVEL.
    """
    if not is_own_command(sys.argv, sys.orig_argv):
        return
    warnings.formatwarning = format_warning
    check_command_line(sys.orig_argv[sys.orig_argv.index("-m") + 1])
    if IS_QUIET:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # Errors alone.
    with kept_from_collector(), without_noise():
        import_keras()


def check_command_line(module: str):
    """Exit if the command line asks for help or is wrong.

    Args:
        module: The module of the command.
    """
    from keras_vit.command_lines import PARSERS

    if module in PARSERS:
        PARSERS[module]().parse_args(sys.argv[1:])


def import_keras():
    """Import Keras, and let TensorFlow look for a GPU.

    Exits with a one-line message if there is no such backend, or it is not
    installed.
    """
    try:
        import keras
    except (ModuleNotFoundError, ValueError) as error:
        sys.exit(
            f"Error: Keras cannot start ({error}). Install its backend, or "
            "choose another one: KERAS_BACKEND=tensorflow, jax or torch."
        )
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.list_physical_devices()


def without_noise() -> contextlib.AbstractContextManager:
    """Return a context in which a command may import TensorFlow quietly.

    In other programs, and if the user wants to see every message, it does
    nothing.
    """
    return filtered_stderr(NOISE) if IS_QUIET else contextlib.nullcontext()


@contextlib.contextmanager
def kept_from_collector() -> Iterator[None]:
    """Keep what is made inside from Python's garbage collector, for good.

    The modules of TensorFlow are 400,000 objects, which stay until the end.
    To go through them again and again takes a third of the time of a command
    that does nothing else, most of it when it ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def format_warning(message, category, filename, lineno, line=None) -> str:
    """Return a warning for the user as one line, without the place in the code.

    Others are shown as Python does.
    """
    if category is UserWarning:
        return f"Warning: {message}\n"
    place = f"{filename}:{lineno}"
    return f"{place}: {category.__name__}: {message}\n"


@contextlib.contextmanager
def filtered_stderr(pattern: str) -> Iterator[None]:
    """Filter lines of the standard error, including those of C++ libraries.

    A separate process filters, so the last messages of a crash are not lost.

    Args:
        pattern: An extended regular expression of `grep`.
    """
    stderr = os.dup(2)
    try:
        grep = subprocess.Popen(
            ["grep", "--line-buffered", "-vE", pattern],
            stdin=subprocess.PIPE,
            stdout=stderr,
            process_group=0,  # Ctrl-C in a terminal is not for it.
        )
    except OSError:  # No grep: all lines are shown.
        os.close(stderr)
        yield
        return
    os.dup2(grep.stdin.fileno(), 2)
    grep.stdin.close()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):
            grep.wait(10)


prepare_command()
