"""Measure how a checkpoint of B/16 is read: time and memory.

    python -m benchmarks.checkpoints --require

Time: `load_checkpoint` into a model, beside `numpy.load` of all arrays and
assigning them, in turns, each the median of the rounds. Memory: how much the
process grows at its peak, in a process of its own for each case, over the
size of the weights; pages of files do not count. Needs Linux.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks.harness import make_parser
from keras_vit.tables import format_table

# Weights are read into an existing model, or a model is built and read.
MEMORY_CASES = ("load_checkpoint", "from_checkpoint")
MAX_TIME, MAX_MEMORY = 1.1, 1.5
# The options of `save_checkpoint` for each file.
FILES = {
    "official .npz": {"layout": "official"},
    "timm .safetensors": {"layout": "timm"},
    "big_vision .npz, stacked": {"layout": "big_vision", "dialect": "scan"},
}


def make_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Write B/16, with random weights, once for each container."""
    import numpy as np

    import keras_vit

    files = {}
    for name, options in FILES.items():
        # Those of big_vision have no class token.
        suffix = "-gap" if options["layout"] == "big_vision" else ""
        config = keras_vit.VARIANTS[f"B/16{suffix}"].config
        model = keras_vit.VisionTransformer(config)
        # No weight is zero, so that nothing is compressed or warned of.
        head = model.get_layer("predictions").kernel
        head.assign(np.random.default_rng(0).normal(size=head.shape))
        path = folder / f"{options['layout']}{name.split()[1].rstrip(',')}"
        keras_vit.save_checkpoint(model, path, **options)
        files[name] = path
    return files


def find_source(path):
    """Return what is found in a checkpoint."""
    from keras_vit.weights.containers import open_file
    from keras_vit.weights.find import Known, find

    with open_file(path) as checkpoint:
        return find(checkpoint, Known(num_heads=12))


def read_plainly(path) -> list:
    """Return all arrays, read with the library of the container.

    The matrices of PyTorch are turned round.
    """
    import numpy as np

    if path.suffix == ".npz":
        with np.load(path) as file:
            return [file[name] for name in file.files]
    from safetensors.numpy import load_file

    return [
        np.ascontiguousarray(array.T) if array.ndim == 2 else array
        for array in load_file(path).values()
    ]


def measure_time(path, rounds: int) -> tuple[float, float]:
    """Return the median seconds of `load_checkpoint` and of plain NumPy.

    The plain way reads every array and assigns as many bytes to the weights.
    """
    import keras_vit

    model = keras_vit.VisionTransformer(find_source(path).config)
    ready = keras_vit.from_checkpoint(path, num_heads=12).get_weights()
    ours, plain = [], []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        keras_vit.load_checkpoint(model, path)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        arrays = read_plainly(path)
        for weight, value in zip(model.weights, ready):
            weight.assign(value)
        plain.append(time.perf_counter() - start)
        del arrays
    # The first round fills the caches of the file system.
    return statistics.median(ours[1:]), statistics.median(plain[1:])


def resident_bytes() -> int:
    """Return the memory that this process occupies.

    Without the pages of files, which the system drops when it needs memory.
    """
    with open("/proc/self/statm") as file:
        _, resident, of_files, *_ = map(int, file.read().split())
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(case: str, path: pathlib.Path) -> float:
    """Return the peak growth of this process over the size of the weights."""
    import keras_vit

    # The memory for the first model of Keras and its backend does not count.
    tiny = keras_vit.ViTConfig(24, 1, 48, 3, 8, 32)
    keras_vit.VisionTransformer(tiny)
    source = find_source(path)
    if case == "load_checkpoint":
        model = keras_vit.VisionTransformer(source.config)
    peak, stop = [0], threading.Event()

    def watch():
        while not stop.wait(0.001):
            peak[0] = max(peak[0], resident_bytes())

    watcher = threading.Thread(target=watch)
    before = resident_bytes()
    watcher.start()
    if case == "load_checkpoint":
        keras_vit.load_checkpoint(model, path)
    else:
        keras_vit.from_checkpoint(path, num_heads=12)
    stop.set()
    watcher.join()
    return (peak[0] - before) / (4 * source.num_parameters)


def measure_memory_apart(case: str, path: pathlib.Path) -> float:
    """Return `measure_memory` of a process of its own."""
    command = ["-m", "benchmarks.checkpoints", f"--memory_of={case}:{path}"]
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True
    )
    return float(result.stdout.split()[-1])


def main() -> int:
    """Print the table; with `--require`, fail beyond the limits."""
    rows = [
        ("--rounds", int, 5, "of reading"),
        ("--require", bool, False, f"fail beyond {MAX_TIME}, {MAX_MEMORY}"),
        ("--memory_of", str, None, argparse.SUPPRESS),
    ]
    options = make_parser(__doc__, rows).parse_args()
    if options.memory_of:
        case, path = options.memory_of.split(":", 1)
        print(measure_memory(case, pathlib.Path(path)))
        return 0
    rows, beyond = [], False
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(pathlib.Path(folder))
        for name, path in files.items():
            ours, plain = measure_time(path, options.rounds)
            memory = {c: measure_memory_apart(c, path) for c in MEMORY_CASES}
            beyond |= ours / plain > MAX_TIME
            beyond |= max(memory.values()) > MAX_MEMORY
            cells = [f"{ours:.2f} s", f"{plain:.2f} s", f"{ours / plain:.2f}"]
            shown = ", ".join(f"{k} {v:.2f}" for k, v in memory.items())
            rows.append([name, *cells, shown])
    columns = ("file", "read", "plain", "read / plain", "peak memory / weights")
    print(format_table(columns, rows))
    return int(options.require and beyond)


if __name__ == "__main__":
    sys.exit(main())
