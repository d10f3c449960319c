"""The start of `python -m` commands: quiet imports, Ctrl-C without traceback.

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

# Lines that TensorFlow writes to the standard error at each start, on a machine
# without a GPU, before its own settings about logging apply.
NOISE = (
    "^WARNING: All log messages before absl::InitializeLog"
    "|^I[0-9]{4} "
    "|^To enable the following instructions"
    "|^E[0-9]{4} .*cuInit.*(UNKNOWN ERROR|CUDA_ERROR_NO_DEVICE)"
)


def prepare_command():
    """Import Keras for a command, without the start-up messages of TensorFlow.

    Does nothing in other programs. To see every message, set
    TF_CPP_MIN_LOG_LEVEL.
    """
    if not is_own_command(sys.argv, sys.orig_argv):
        return
    sys.excepthook = report_error
    warnings.formatwarning = format_warning
    check_command_line(sys.orig_argv[sys.orig_argv.index("-m") + 1])
    with kept_from_collector():
        if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
            import keras  # noqa: F401
        else:
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # Errors alone.
            with filtered_stderr(NOISE):
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
    """Import Keras, and let TensorFlow look for a GPU."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.list_physical_devices()


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


def is_own_command(argv: list[str], orig_argv: list[str]) -> bool:
    """Return whether Python is starting a command of this project.

    Args:
        argv: `sys.argv`, which is ["-m", ...] while Python searches for the
            module to run.
        orig_argv: `sys.orig_argv`, which contains the name of the module.

    Example:
        >>> is_own_command(["-m"], ["python", "-m", "trainers.train"])
        True
        >>> is_own_command(["-m"], ["python", "-m", "your_package.train"])
        False
    """
    if argv[:1] != ["-m"] or "-m" not in orig_argv[:-1]:
        return False
    module = orig_argv[orig_argv.index("-m") + 1]
    return module.partition(".")[0] in ("keras_vit", "trainers")


def report_error(kind, error, traceback):
    """Print an error that ends the program; Ctrl-C without its traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, traceback)


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
