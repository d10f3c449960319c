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


def make_files(folder: pathlib.Path, variant: str) -> dict[str, pathlib.Path]:
    """Write the variant, with random weights, once for each container."""
    import numpy as np

    import keras_vit

    model = keras_vit.VisionTransformer(keras_vit.VARIANTS[variant].config)
    # No weight is zero, so that nothing is compressed or warned of.
    head = model.get_layer("predictions").kernel
    head.assign(np.random.default_rng(0).normal(size=head.shape))
    files = {
        "official .npz": folder / "official.npz",
        "timm .safetensors": folder / "timm.safetensors",
    }
    for name, path in files.items():
        keras_vit.save_checkpoint(model, path, layout=name.split()[0])
    files["big_vision .npz, stacked"] = folder / "stacked.npz"
    gap = keras_vit.VARIANTS[f"{variant}-gap"].config
    model = keras_vit.VisionTransformer(gap)
    model.get_layer("predictions").kernel.assign(head)
    keras_vit.save_checkpoint(
        model,
        files["big_vision .npz, stacked"],
        layout="big_vision",
        dialect="scan",
    )
    return files


def arrays_by_weight(path) -> dict:
    """Return the value of each weight, found without `load_checkpoint`."""
    import keras_vit

    model = keras_vit.from_checkpoint(path, num_heads=12)
    return {weight.path: weight.numpy() for weight in model.weights}


def measure_time(path, rounds: int) -> tuple[float, float]:
    """Return the median seconds of `load_checkpoint` and of plain NumPy.

    The plain way reads every array with the library of the container, turns
    the matrices of PyTorch round and assigns as many bytes to the weights.
    """
    import numpy as np

    import keras_vit
    from keras_vit.weights.containers import open_file
    from keras_vit.weights.find import Known, find

    with open_file(path) as checkpoint:
        config = find(checkpoint, Known(num_heads=12)).config
    model = keras_vit.VisionTransformer(config)
    ready = arrays_by_weight(path)
    ours, plain = [], []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        keras_vit.load_checkpoint(model, path)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        if path.suffix == ".npz":
            with np.load(path) as file:
                arrays = [file[name] for name in file.files]
        else:
            from safetensors.numpy import load_file

            arrays = [
                np.ascontiguousarray(array.T) if array.ndim == 2 else array
                for array in load_file(path).values()
            ]
        for weight in model.weights:
            weight.assign(ready[weight.path])
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
    from keras_vit.weights.containers import open_file
    from keras_vit.weights.find import Known, find

    # The memory for the first model of Keras and its backend does not count.
    tiny = keras_vit.ViTConfig(24, 1, 48, 3, 8, 32)
    keras_vit.VisionTransformer(tiny)
    with open_file(path) as checkpoint:
        source = find(checkpoint, Known(num_heads=12))
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


def main() -> int:
    """Print the table; with `--require`, fail beyond the limits."""
    parser = make_parser(__doc__)
    parser.add_argument("--variant", default="B/16", choices=["S/16", "B/16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--require",
        action="store_true",
        help=f"fail if reading takes more than {MAX_TIME} times the plain way "
        f"or {MAX_MEMORY} times the memory of the weights",
    )
    parser.add_argument("--memory_of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        case, path = options.memory_of
        print(measure_memory(case, pathlib.Path(path)))
        return 0
    rows, times, memories = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(pathlib.Path(folder), options.variant)
        for name, path in files.items():
            ours, plain = measure_time(path, options.rounds)
            memory = {c: measure_memory_apart(c, path) for c in MEMORY_CASES}
            times.append(ours / plain)
            memories += memory.values()
            cells = [f"{ours:.2f} s", f"{plain:.2f} s", f"{times[-1]:.2f}"]
            shown = ", ".join(f"{k} {v:.2f}" for k, v in memory.items())
            rows.append([name, *cells, shown])
    columns = ("file", "read", "plain", "read / plain", "peak memory / weights")
    print(format_table(columns, rows))
    beyond = max(times) > MAX_TIME or max(memories) > MAX_MEMORY
    return int(options.require and beyond)


def measure_memory_apart(case: str, path: pathlib.Path) -> float:
    """Return `measure_memory` of a process of its own."""
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.checkpoints"]
        + ["--memory_of", case, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout.split()[-1])


if __name__ == "__main__":
    sys.exit(main())
