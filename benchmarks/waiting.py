"""Measure the waiting times of a user: python -m benchmarks.waiting.

Each case runs in a process of its own. With --before, another checkout of the
project runs the same cases in turns, and the last column is the median of the
ratio in each round.

    python -m benchmarks.waiting --before=../older --run_dir=saved_models/digits
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import (
    describe_machine,
    make_parser,
    median_ratio,
    quartiles,
)
from keras_vit.tables import format_table

HERE = pathlib.Path(__file__).parents[1]
# Programs that print their seconds; the others are timed from outside.
IMPORT = """
import time, keras
start = time.perf_counter()
import keras_vit
print(time.perf_counter() - start)
"""
# The imports of a command, then its work to the end of the first update.
FIRST_UPDATE = """
import time
from keras_vit.command_line import import_keras
import_keras()
import keras_vit, tensorflow as tf
from trainers.loop.loop import InnerLoop
from trainers.loop.step import Step
from trainers.optim.optimizers import make_optimizer
model = keras_vit.ViT_B16(weights=None, classes=1000)
optimizer = make_optimizer("adamw", model.trainable_variables, 1e-3, 0.1)
batch = (tf.zeros((1, 224, 224, 3)), tf.one_hot([0], 1000), tf.ones(1))
batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
loss = tf.nn.softmax_cross_entropy_with_logits
step = Step(model, optimizer, loss, clip_norm=1.0)
loop = InnerLoop(step, tf.distribute.OneDeviceStrategy("CPU:0"))
times = [time.perf_counter()]
for number in range(2):
    number = tf.constant(number, tf.int64)
    loop.train(batches, tf.constant(1), number)[1].numpy()
    times.append(time.perf_counter())
print(times[1] - times[0] - (times[2] - times[1]))
"""
INSPECT = """
import time, numpy as np, keras_vit
model = keras_vit.ViT_B16(weights=None, classes=1000)
images = np.random.default_rng(0).uniform(-1, 1, (3, 224, 224, 3))
keras_vit.analysis.inspect_model(model, images[:1])
start = time.perf_counter()
keras_vit.analysis.inspect_model(model, images[1:])
print((time.perf_counter() - start) / 2)
"""
WAITING_CASES = {
    "`import keras_vit`, beyond Keras": ["-c", IMPORT],
    "`trainers.train --help`": ["-m", "trainers.train", "--help"],
    "`keras_vit.convert --help`": ["-m", "keras_vit.convert", "--help"],
    "the first update of B/16, beyond the second": ["-c", FIRST_UPDATE],
    "inspecting an image with B/16": ["-c", INSPECT],
}
# Command lines that must be refused.
WRONG = {
    "a mistyped flag": ["-m", "trainers.train", "--epohcs=3"],
    "a flag that resembles none": ["-m", "trainers.predict", "--zzz"],
    "a number that is none": ["-m", "trainers.evaluate", "--batch_size=abc"],
}


OPTIONS = [
    ("--rounds", int, 5, "of each case"),
    ("--before", str, None, "another checkout, to compare with"),
    ("--run_dir", str, None, "a run to evaluate and to export"),
]


def measure(words: list[str], source: pathlib.Path, is_right: bool) -> float:
    """Return the seconds that a program takes, or that it prints.

    It imports the project of `source`, and must succeed if `is_right`, else
    fail.
    """
    environment = {**os.environ, "PYTHONPATH": str(source)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, *words],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if is_right == bool(result.returncode):
        raise RuntimeError(f"{words} ended with {result.returncode}")
    return float(result.stdout.split()[-1]) if words[0] == "-c" else seconds


def describe(seconds: list[float]) -> str:
    """Return the median and the quartiles.

    Example:
        >>> describe([1.0, 2.0, 3.0, 4.0, 9.0])
        '3.00 s (2.00 to 4.00)'
    """
    low, middle, high = quartiles(seconds)
    return f"{middle:.2f} s ({low:.2f} to {high:.2f})"


def main():
    """Print a row for each case."""
    options = make_parser(__doc__, OPTIONS).parse_args()
    sources = [HERE]
    if options.before:
        sources.append(pathlib.Path(options.before).resolve())
    cases = WAITING_CASES | WRONG
    with tempfile.TemporaryDirectory() as folder:
        if options.run_dir:
            run = f"--run_dir={pathlib.Path(options.run_dir).resolve()}"
            export = ["-m", "trainers.export_model", f"--export_dir={folder}"]
            cases["`trainers.evaluate`"] = ["-m", "trainers.evaluate", run]
            cases["`trainers.export_model`"] = [*export, run]
        rows = []
        for name, words in cases.items():
            times = [[] for _ in sources]
            for _ in range(options.rounds):
                for source, seconds in zip(sources, times):
                    is_right = name not in WRONG
                    seconds.append(measure(words, source, is_right))
            rows.append([name, *map(describe, times)])
            if options.before:
                rows[-1].append(f"{median_ratio(*times):.2f}")
    columns = ["", "now", "before", "now / before"]
    print(*describe_machine({}), sep="\n")
    print(format_table(columns[: len(rows[0])], rows))


if __name__ == "__main__":
    main()
