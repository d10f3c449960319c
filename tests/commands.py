"""Commands as a user types them, without the seconds that imports take.

Each runs in a fork of one process that has imported what others wrote, and
has done nothing with it yet; what is ours is imported anew. That the commands
run without this is proven in tests/test_startup.py.
"""

import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["keras", "sklearn.datasets", "tensorflow", "tensorflow_datasets"]
)


def start(words, environment, output, errors=None, cwd="."):
    """Start `python -m MODULE ...` or `python -c TEXT ...`.

    What is printed goes to the files `output` and `errors`, or to one.
    Returns a process: its `pid`, `join(seconds)` and `exitcode`.
    """
    paths = [str(output), str(errors or output)]
    arguments = (
        [*map(str, words)],
        {**environment},
        paths,
        os.path.abspath(cwd),
    )
    process = FORKS.Process(target=_execute, args=arguments)
    process.start()
    return process


def run(words, environment, cwd="."):
    """Return what `subprocess.run` returns, with the output as text."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / name for name in ("out", "err")]
        process = start(words, environment, *paths, cwd=cwd)
        process.join()
        texts = [path.read_text() for path in paths]
        return subprocess.CompletedProcess(words, process.exitcode, *texts)


def _execute(words, environment, paths, cwd):
    for descriptor, path in enumerate(paths, start=1):
        os.dup2(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor
        )
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, "")
    option, code, *sys.argv[1:] = words
    if option == "-m":
        runpy.run_module(code, run_name="__main__", alter_sys=True)
    else:
        exec(compile(code, "-c", "exec"), {"__name__": "__main__"})
