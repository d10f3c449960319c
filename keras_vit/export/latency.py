"""Latency of exports, compared with the Keras model.

The number of threads must be set before TensorFlow starts, so each number is
measured in its own process. The model and its exports take turns there, so
other work of the machine slows down all of them equally.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np

from keras_vit.export.agreement import make_noise
from keras_vit.export.formats import find_format

TIME_LIMIT = 1800  # Seconds, for one number of threads.
WARM_UP = 3  # Runs before the first measured one.
READY = "ready\n"
# Python's garbage collector would go through the objects of TensorFlow, which
# stay until the end, again and again.
PROGRAM = f"""
import gc
gc.disable()
from keras_vit.export.latency import measure_request
gc.freeze()
gc.enable()
print({READY!r}, end="", flush=True)
measure_request(input())
"""


@dataclasses.dataclass(frozen=True)
class Latency:
    """The latency of an export for one batch, on the CPU.

    Args:
        name: Name that the caller gave the export.
        threads: Number of threads of the export and of the Keras model.
        batch_size: Number of images in the batch.
        milliseconds: Median latency; None if it was not measured.
        keras_milliseconds: Median latency of the model's `predict_on_batch`.
        ratio: Median of the ratio of both latencies in each round.
        reason: Reason why the latency was not measured.
    """

    name: str
    threads: int
    batch_size: int
    milliseconds: float | None = None
    keras_milliseconds: float | None = None
    ratio: float | None = None
    reason: str = ""


def measure_latency(
    model: keras.Model,
    exports: Mapping[str, str | os.PathLike],
    threads: Sequence[int] = (1, 2),
    batch_size: int = 1,
    repetitions: int = 20,
    *,
    processes: Sequence[tuple[int, subprocess.Popen]] | None = None,
) -> list[Latency]:
    """Measure the latency of exports, absolute and relative to `model`.

    If an export cannot be measured, for example because the model has layers
    that a new process cannot import, the result contains the reason. This is
    not an error.

    Args:
        model: The model that was exported.
        exports: Paths of exported files and folders, by names of your choice.
        threads: Numbers of threads, each measured in its own process.
        batch_size: Number of images in a batch.
        repetitions: Number of measurements of each export.
        processes: The processes of `started`, if they are running already.

    Returns:
        One entry for each number of threads and each export, in this order.
    """
    request = {
        "exports": {name: os.fspath(path) for name, path in exports.items()},
        "batch_size": batch_size,
        "repetitions": repetitions,
    }
    rows, reason = [], ""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        folder = pathlib.Path(folder)
        if processes is None:
            processes = stack.enter_context(started(threads))
        try:
            model.save(folder / "model.keras")
        except Exception as error:  # A layer may raise anything.
            reason = f"the model cannot be saved: {in_short(error)}"
        for _, process in processes:  # Until it has imported TensorFlow.
            while process.stdout.readline() not in (READY, ""):
                pass
        for number, process in processes:
            request["threads"] = number
            found = {} if reason else run_process(process, folder, request)
            rows += [
                Latency(
                    name=name,
                    threads=number,
                    batch_size=batch_size,
                    **found.get(name, {"reason": found.get("", reason)}),
                )
                for name in exports
            ]
    return rows


@contextlib.contextmanager
def started(
    threads: Sequence[int],
) -> Iterator[list[tuple[int, subprocess.Popen]]]:
    """Start a process for each number of threads; kill those left at the end.

    All of them import TensorFlow at once, and then wait to be asked. Yields
    the numbers, each with its process.
    """
    with contextlib.ExitStack() as stack:
        processes = []
        for number in threads:
            environment = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "KERAS_BACKEND": "tensorflow",
                "OMP_NUM_THREADS": str(number),
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append((number, process))
        yield processes


def run_process(
    process: subprocess.Popen, folder: pathlib.Path, request: dict
) -> dict:
    """Measure latencies in a process."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    (folder / "request.json").write_text(json.dumps(request))
    try:
        _, errors = process.communicate(f"{folder}\n", TIME_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"": f"it took longer than {TIME_LIMIT} s"}
    if result.exists():
        return json.loads(result.read_text())
    last = errors.strip().splitlines()[-1:]
    return {"": f"the process ended with {process.returncode}: {''.join(last)}"}


def in_short(error: BaseException) -> str:
    """Return the type and the start of the original error."""
    while error.__cause__ or not error.__suppress_context__:
        earlier = error.__cause__ or error.__context__
        if earlier is None:
            break
        error = earlier
    text = f"{type(error).__name__}: {error}"
    return textwrap.shorten(text, 150, placeholder=" ...")


def measure_request(folder: str):
    """Run the request in a folder and write the result to the same folder."""
    folder = pathlib.Path(folder)
    request = json.loads((folder / "request.json").read_text())
    set_threads(request["threads"])
    try:
        model = keras.saving.load_model(folder / "model.keras", compile=False)
    except Exception as error:  # A layer may raise anything.
        found = {"": f"a new process cannot load it: {in_short(error)}"}
    else:
        found = measure_exports(model, request)
    (folder / "result.json").write_text(json.dumps(found))


def measure_exports(model: keras.Model, request: dict) -> dict[str, dict]:
    """Return the fields of Latency that are measured, by name."""
    batch_size = request["batch_size"]
    images = make_noise((batch_size, *model.input_shape[1:]), "float32")
    found, runs = {}, {}
    for name, path in request["exports"].items():
        try:
            row = find_format(path)
            loaded = row.load(path, request["threads"], batch_size)
            count, *shape = loaded.shape
            if count not in (None, batch_size):
                raise ValueError(f"it takes batches of {count} images")
            noise = make_noise((batch_size, *shape), loaded.dtype)
            run = functools.partial(loaded.call, noise)
            warm_up(run)
            runs[name] = run
        except Exception as error:  # Each library raises its own kind.
            found[name] = {"reason": in_short(error)}
    keras_run = functools.partial(model.predict_on_batch, images)
    warm_up(keras_run)
    return found | compare_times(keras_run, runs, request["repetitions"])


def warm_up(run: Callable):
    """Run until one-time work, such as tracing, is done."""
    for _ in range(WARM_UP):
        run()


def set_threads(threads: int):
    """Set the number of TensorFlow's threads, before TensorFlow starts."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.list_logical_devices()  # Starts TensorFlow.


def compare_times(
    keras_run: Callable, runs: Mapping[str, Callable], repetitions: int
) -> dict[str, dict]:
    """Return the fields of Latency that are measured, by name."""
    everyone = [keras_run, *runs.values()]
    seconds = np.zeros((repetitions, len(everyone)))
    for turn in range(repetitions):
        # The order rotates, so no export always comes first.
        for index in np.roll(np.arange(len(everyone)), turn):
            # The first run fills the caches; only the second is measured.
            everyone[index]()
            start = time.perf_counter()
            everyone[index]()
            seconds[turn, index] = time.perf_counter() - start
    medians = 1000 * np.median(seconds, axis=0)
    ratios = np.median(seconds / seconds[:, :1], axis=0)
    return {
        name: {
            "milliseconds": float(medians[index]),
            "keras_milliseconds": float(medians[0]),
            "ratio": float(ratios[index]),
        }
        for index, name in enumerate(runs, start=1)
    }
