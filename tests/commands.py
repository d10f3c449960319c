"""Commands as a user types them, without the seconds that imports take.

Each runs in a fork of a process that has imported what others wrote, and has
done nothing with it yet; what is ours is imported anew. There is one such
process for each backend of Keras. That the commands run without this is
proven in tests/test_command_line.py.
"""

import contextlib
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing import forkserver
from unittest import mock

FORKS = multiprocessing.get_context("forkserver")
IMPORTED = ["keras", "sklearn.datasets", "tensorflow", "tensorflow_datasets"]
LOCK = threading.Lock()


@functools.cache
def _server(backend):
    """Return the process that has imported Keras on a backend."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, KERAS_BACKEND=backend):
        server.ensure_running()
    return server


def environment():
    """Return the environment for commands, as it is now."""
    return {
        **os.environ,
        "PYTHONPATH": str(pathlib.Path(__file__).parents[1]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def start(words, environment, output, errors=None, cwd=".", source=os.devnull):
    """Start `python -m MODULE ...`, `python -c TEXT ...` or `python FILE ...`.

    What is printed goes to the files `output` and `errors`, or to one. What
    is read comes from the file `source`.
    Returns a process: its `pid`, `join(seconds)` and `exitcode`.
    """
    paths = [str(source), str(output), str(errors or output)]
    arguments = (
        [*map(str, words)],
        {**environment},
        paths,
        os.path.abspath(cwd),
    )
    process = FORKS.Process(target=_execute, args=arguments)
    with LOCK:
        server = _server(environment.get("KERAS_BACKEND", "tensorflow"))
        # Python itself has one for all.
        fork = server.connect_to_new_process
        with mock.patch.object(forkserver, "connect_to_new_process", fork):
            process.start()
    return process


def run(words, environment, cwd=".", timeout=None):
    """Return the result of `subprocess.run`, with the output as text.

    One that takes longer than `timeout` seconds is killed, an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / name for name in ("out", "err")]
        process = start(words, environment, *paths, cwd=cwd)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        texts = [path.read_text() for path in paths]
        return subprocess.CompletedProcess(words, process.exitcode, *texts)


def run_anew(words, environment, cwd=".", timeout=None):
    """Return the same of a process of its own, with imports of its own.

    One that takes longer than `timeout` seconds is killed, an error.
    """
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@contextlib.contextmanager
def python():
    """Yield the path of a program that scripts can call instead of Python.

    It asks this process for a fork that does what Python would, with its
    environment, folder, input and outputs. If it is killed, the fork gets
    SIGTERM.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "python")
        address = f"{folder}/socket"
        program.write_text(
            f"#!{sys.executable} -SE\n{CLIENT.format(address=address)}"
        )
        program.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address)
            server.listen()
            _start_thread(_accept, server)
            yield str(program)


CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    task = sys.argv[1:], dict(os.environ), os.getpid(), os.getcwd()
    server.sendall(json.dumps(task).encode() + b"\\n")
    code = int(server.makefile().read())
sys.exit(code if code >= 0 else 128 - code)
"""


def _start_thread(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _accept(server):
    with contextlib.suppress(OSError):  # It was closed.
        while True:
            _start_thread(_serve, server.accept()[0])


def _serve(client):
    with client:
        words, environment, pid, cwd = json.loads(client.makefile().readline())
        source, *outputs = (f"/proc/{pid}/fd/{n}" for n in range(3))
        process = start(words, environment, *outputs, cwd=cwd, source=source)
        ready = multiprocessing.connection.wait([process.sentinel, client])
        if process.sentinel not in ready:
            process.terminate()
        process.join()
        with contextlib.suppress(OSError):
            client.sendall(str(process.exitcode).encode())


def _execute(words, environment, paths, cwd):
    source, *outputs = paths
    with contextlib.suppress(OSError):  # A socket cannot be opened again.
        os.dup2(os.open(source, os.O_RDONLY | os.O_NOCTTY), 0)
    sys.stdin = open(0, closefd=False)
    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor
        )
    # The one of before may believe that it can seek, which a pipe cannot.
    sys.stdout = open(1, "w", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, "")
    if words[0] not in ("-m", "-c"):
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")
        return
    option, code, *sys.argv[1:] = words
    if option == "-m":
        runpy.run_module(code, run_name="__main__", alter_sys=True)
    else:
        exec(compile(code, "-c", "exec"), {"__name__": "__main__"})
