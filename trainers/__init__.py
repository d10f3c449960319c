"""Training, evaluating, predicting and exporting from the command line."""

import os
import sys


def _report_error(kind, error, traceback):
    """Print an error as `keras_vit.interrupts` does.

    Until that is imported, whose package takes seconds.
    """
    if issubclass(kind, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, traceback)


def _find_command() -> str | None:
    """Return the command of ours that Python is looking for, if it is one."""
    if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv[:-1]:
        return None
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    return module if module.startswith("trainers.") else None


def _begin(module):
    """Begin a command, before it imports TensorFlow."""
    from trainers.help.showing import answer_early

    answer_early(module, sys.argv[1:])
    import keras_vit  # noqa: F401  Its start-up quiets TensorFlow.
    from trainers.runs.backend import require_tensorflow

    require_tensorflow()


_command = _find_command()
if _command or os.path.basename("".join(sys.argv[:1])) == "keras-vit":
    sys.excepthook = _report_error
if _command:
    _begin(_command)

# TensorFlow reads it when it is imported. Set it to see every line.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
