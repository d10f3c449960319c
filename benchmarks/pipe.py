"""Both ends of the pipe between the driver and a worker process.

A worker reads one line, the case as JSON, builds what the case asks for and
answers with the versions of its libraries. After that every line it reads
names something to run once, "step" or "product", and it answers with the
seconds that took; to "memory" with its peak memory so far, and to "device" with
the name of its GPU. Only the standard library is needed here: a worker may run
in an environment without this package.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

REPOSITORY = pathlib.Path(__file__).parents[1]
WARM_UP_RUNS = 2
MESSAGE_LINES = 20


def answer_requests(make_functions: Callable, find_gpu=lambda: None):
    """Answer the driver until it closes the pipe.

    Args:
        make_functions: Takes the case; returns functions by name, each of which
            runs something once and waits for its result, and the versions.
        find_gpu: Returns the name of the GPU that is used and a function that
            returns the most bytes it had in use, or None.
    """
    # Libraries may print; only answers belong on the pipe.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    before = peak_memory()
    functions, versions = make_functions(json.loads(sys.stdin.readline()))
    for function in functions.values():
        for _ in range(WARM_UP_RUNS):
            function()
    device, used = find_gpu() or ("", lambda: peak_memory() - before)
    answer(versions)
    for line in map(str.strip, sys.stdin):
        if line in ("memory", "device"):
            answer(used() if line == "memory" else device)
            continue
        start = time.perf_counter()
        functions[line]()
        answer(time.perf_counter() - start)


def repeat(run: Callable, wait: Callable, times: int) -> Callable[[], object]:
    """Return a function that runs a step several times and then waits."""

    def steps():
        for _ in range(times):
            result = run()
        return wait(result)

    return steps


def peak_memory() -> int:
    """Return the most bytes that this process had in memory; 0 if unknown."""
    status = pathlib.Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    sizes = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return 1024 * int(sizes[0]) if sizes else 0


class Worker:
    """A process that runs steps on request, and is idle in between.

    Made ready, and warmed up, by the constructor; ended as a context manager.
    `versions` are those of the libraries that it uses.

    Args:
        module: Such as "benchmarks.worker_keras".
        case: What to build, JSON-able.
        python: The interpreter to run the module with.

    Raises:
        RuntimeError: If the process ends before it answers.
    """

    def __init__(self, module: str, case: dict, python: str = sys.executable):
        self._name = f"{module} ({case['package']})"
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, "-m", module],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "KERAS_BACKEND": case.get("backend", "tensorflow"),
                "OMP_NUM_THREADS": str(case["threads"]),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                # JAX would keep most of a GPU to itself.
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # `pause` is about its children, too.
        )
        try:
            self.versions = self.ask(json.dumps(case))
        except BaseException:
            self._process.kill()
            self.__exit__()
            raise

    def ask(self, line: str):
        """Return the answer: of "step" and "product", their seconds."""
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self._process.wait()
            self._errors.seek(0)
            last = "".join(self._errors.readlines()[-MESSAGE_LINES:])
            raise RuntimeError(
                f"{self._name} ended without an answer:\n{last}"
            ) from None

    def pause(self):
        """Stop the process and its children, which may work ahead."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self):
        """Let them go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # The worker ends when its input does.
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()
