"""Ctrl-C while a command starts: one line instead of a traceback.

It comes first and imports almost nothing, because Ctrl-C during an import is a
traceback until this is done. It does not affect programs that import the
package as a library.
"""

import sys


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


if is_own_command(sys.argv, sys.orig_argv):
    sys.excepthook = report_error
