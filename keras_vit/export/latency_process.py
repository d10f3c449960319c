"""The process in which latency.py measures latencies.

The model and its exports take turns, so other work of the machine slows down
all of them equally.
"""

import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping

import keras
import numpy as np

from keras_vit.export.formats import find_format
from keras_vit.export.latency import in_short
from keras_vit.export.predicting import make_noise

WARM_UP = 3


def measure_request(folder: str):
    """Run the request in a folder and write the result to the same folder.

    Args:
        folder: See `run_process`.
    """
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
    shape = (request["batch_size"], *model.input_shape[1:])
    images = make_noise(shape, "float32")
    found, runs = {}, {}
    keras_run = functools.partial(model.predict_on_batch, images)
    for name, path in request["exports"].items():
        try:
            start = find_format(path).start
            runs[name] = start(path, shape, request["threads"])
            warm_up(runs[name])
        except Exception as error:  # Each library raises its own kind.
            runs.pop(name, None)
            found[name] = {"reason": in_short(error)}
    warm_up(keras_run)
    return found | compare_times(keras_run, runs, request["repetitions"])


def set_threads(threads: int):
    """Set the number of TensorFlow's threads, before TensorFlow starts.

    Raises:
        RuntimeError: If TensorFlow has started.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.list_logical_devices()  # Starts TensorFlow.


def warm_up(run: Callable):
    """Run until one-time work, such as tracing, is done."""
    for _ in range(WARM_UP):
        run()


def compare_times(
    keras_run: Callable, runs: Mapping[str, Callable], repetitions: int
) -> dict[str, dict]:
    """Return the fields of Latency that are measured, by name.

    Args:
        keras_run: Runs Keras on a batch.
        runs: Functions that run the exports on this batch, by name.
        repetitions: Number of measurements of each function.
    """
    everyone = [keras_run, *runs.values()]
    seconds = np.zeros((repetitions, len(everyone)))
    busy = np.zeros_like(seconds)
    for turn in range(repetitions):
        # The order rotates, so no export always comes first.
        for index in np.roll(np.arange(len(everyone)), turn):
            # The first run fills the caches; only the second is measured.
            everyone[index]()
            start, cpu_start = time.perf_counter(), time.process_time()
            everyone[index]()
            busy[turn, index] = time.process_time() - cpu_start
            seconds[turn, index] = time.perf_counter() - start
    medians = 1000 * np.median(seconds, axis=0)
    ratios = np.median(seconds / seconds[:, :1], axis=0)
    busy_threads = busy.sum(axis=0) / seconds.sum(axis=0)
    return {
        name: {
            "milliseconds": float(medians[index]),
            "keras_milliseconds": float(medians[0]),
            "ratio": float(ratios[index]),
            "busy_threads": float(busy_threads[index]),
        }
        for index, name in enumerate(runs, start=1)
    }
