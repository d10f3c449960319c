"""Measure the waiting times of a user: python -m benchmarks.waiting.

Each case runs in a process of its own. With --before, another checkout of the
project runs the same cases in turns, and the last column is the median of the
ratio in each round. Each checkout has its own way to make an update.

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
from keras_vit import VARIANTS, VisionTransformer
from keras_vit.analysis import inspect_model
from keras_vit.tables import format_table

HERE = pathlib.Path(__file__).parents[1]
# Programs that print their seconds; the others are timed from outside.
IMPORT = """
import time, keras
start = time.perf_counter()
import keras_vit
print(time.perf_counter() - start)
"""
CALL = "from benchmarks import waiting; print(waiting.{}())"
WAITING_CASES = {
    "`import keras_vit`, beyond Keras": ["-c", IMPORT],
    "`trainers.train --help`": ["-m", "trainers.train", "--help"],
    "`keras_vit.convert --help`": ["-m", "keras_vit.convert", "--help"],
    "the first update of B/16, beyond the second": [
        "-c",
        CALL.format("time_first_update"),
    ],
    "inspecting an image with B/16": ["-c", CALL.format("time_inspection")],
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


def time_first_update(variant: str = "B/16") -> float:
    """Return the seconds that the first update takes beyond the second."""
    import tensorflow as tf

    from trainers.engine.strategies import make_engine
    from trainers.engine.update import Update
    from trainers.optim.optimizers import make_optimizer

    engine = make_engine("one_device")
    with engine.scope():
        model = VisionTransformer(VARIANTS[variant].config)
        variables = model.trainable_variables
        optimizer = make_optimizer("adamw", variables, 1e-3, 0.1)
    loss = tf.nn.softmax_cross_entropy_with_logits
    update = engine.compile(Update(model, optimizer, loss, clip_norm=1.0))
    labels = tf.one_hot([0], model.config.num_classes)
    batch = (tf.zeros((1, *model.input_shape[1:])), labels, tf.ones(1))
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    times = [time.perf_counter()]
    for number in range(2):
        update.train(batches, 1, number)
        times.append(time.perf_counter())
    return times[1] - times[0] - (times[2] - times[1])


def time_inspection(variant: str = "B/16") -> float:
    """Return the seconds to inspect an image, after a first one."""
    import numpy as np

    model = VisionTransformer(VARIANTS[variant].config)
    shape = (3, *model.input_shape[1:])
    images = np.random.default_rng(0).uniform(-1, 1, shape)
    inspect_model(model, images[:1])
    start = time.perf_counter()
    inspect_model(model, images[1:])
    return (time.perf_counter() - start) / 2


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
