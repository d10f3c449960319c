"""Kill a training again and again, at random moments; print how it ends.

    python -m tests.trainers.loop.kill_again FOLDER NUMBER_OF_KILLS

Every other kill waits for a save to begin. Goes on until a quarter of the kills
has met a save, up to MOST_KILLS.

A program of its own, because its processes are forks: those must come before
TensorFlow begins to work, and they save its import. A life is to be short: what
the updates compute is made of few operations, which are not compiled. Only
what is on the disk outlives a kill.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from trainers.distribute.strategies import make_strategy
from trainers.loop.checkpoints import Checkpoints
from trainers.loop.loop import Loop
from trainers.loop.metrics import MetricsFile
from trainers.optim.losses import softmax
from trainers.optim.optimizers import make_optimizer
from trainers.optim.schedules import WarmupSchedule

TOTAL_STEPS = 300
STEPS_PER_CHECKPOINT = 4
MOST_KILLS = 100
draws = np.random.default_rng(0)
IMAGES = draws.normal(size=(480, 16)).astype("float32")
LABELS = np.eye(10, dtype="float32")[draws.integers(0, 10, 480)]


class Tell(keras.callbacks.Callback):
    """Write a byte when the first updates are made."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe

    def on_train_batch_end(self, batch, logs=None):
        if self.pipe is not None:
            os.write(self.pipe, b".")
            self.pipe = None


def live(folder, pipe):
    """Train from where the folder stands to the end."""
    tf.config.run_functions_eagerly(True)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(16, "gelu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    optimizer = make_optimizer(
        "adamw",
        model.trainable_variables,
        WarmupSchedule(1e-2, TOTAL_STEPS, 10),
        weight_decay=0.1,
        average_decay=0.9,
    )
    loop = Loop(
        model, optimizer, softmax, make_strategy("one_device"), clip_norm=1.0
    )
    loop.checkpoints = Checkpoints(str(folder / "checkpoints"), loop.state)
    loop.resume()
    examples = tf.data.Dataset.from_tensor_slices(
        (IMAGES, LABELS, np.ones(len(IMAGES), "float32"))
    )
    loop.train(
        lambda _: examples.batch(32).repeat().skip(loop.step),
        lambda _: examples.batch(len(IMAGES)),
        total_steps=TOTAL_STEPS,
        steps_per_epoch=15,
        eval_steps=1,
        steps_per_loop=5,
        steps_per_checkpoint=STEPS_PER_CHECKPOINT,
        callbacks=[
            MetricsFile(folder / "metrics.csv", first_step=loop.step),
            Tell(pipe),
        ],
    )


def start(folder):
    """Return the number of a process that trains, and a pipe from it."""
    folder.mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    code = 1
    try:
        live(folder, writer)
        code = 0
    finally:
        os._exit(code)  # Without the buffers and the exit work of the parent.


def newest(folder):
    """Return the step of the newest checkpoint, 0 if there is none."""
    names = [path.name for path in folder.glob("checkpoints/step-*")]
    return max((int(name[5:]) for name in names), default=0)


def drafts(folder):
    """Return the names of saves that did not end, and when each changed."""
    found = set()
    for path in folder.glob("checkpoints/.draft*"):
        with contextlib.suppress(FileNotFoundError):  # It ended just now.
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def has_ended(process):
    """Return whether a process is only waited for."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process, options) is not None


def end(process):
    """Wait for a process; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def final_state(folder):
    """Return {name: array} of the last checkpoint."""
    path = str(folder / f"checkpoints/step-{TOTAL_STEPS:08d}/state")
    reader = tf.train.load_checkpoint(path)
    names = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n in names if "OBJECT" not in n}


def main(folder, num_kills):
    """Train once without a break and once with; print a JSON line."""
    whole, broken = folder / "whole", folder / "broken"
    unbroken, _ = start(whole)  # Beside the other.
    moments = random.Random(0)
    kills = in_a_save = 0
    while True:
        before = drafts(broken)  # Of those who were killed.
        process, reader = start(broken)
        os.read(reader, 1)  # Or nothing, when it ended.
        os.close(reader)
        is_rare = in_a_save < num_kills // 4
        if kills < num_kills or (is_rare and kills < MOST_KILLS):
            # So far that the kills are spread over the whole run,
            share = (kills + moments.random()) / num_kills
            target = min(share, 0.9) * TOTAL_STEPS
            while newest(
                broken
            ) + STEPS_PER_CHECKPOINT < target and not has_ended(process):
                time.sleep(0.005)  # To look is work that the training lacks.
            # within a save, or anywhere in what follows.
            if kills % 2:
                while not (drafts(broken) - before or has_ended(process)):
                    time.sleep(0.001)
                time.sleep(moments.uniform(0, 0.02))
            else:
                time.sleep(moments.uniform(0, 0.12))
            os.kill(process, signal.SIGKILL)
        code = end(process)
        if code != -signal.SIGKILL:
            break
        kills += 1
        in_a_save += bool(drafts(broken) - before)
    if end(unbroken):
        sys.exit("The unbroken run failed.")
    one, other = final_state(whole), final_state(broken)
    metrics = [(f / "metrics.csv").read_bytes() for f in (whole, broken)]
    report = {
        "exit": code,
        "kills": kills,
        "in_a_save": in_a_save,
        "arrays": len(one),
        "different": [
            name
            for name in one.keys() | other.keys()
            if name not in one
            or name not in other
            or one[name].tobytes() != other[name].tobytes()
        ],
        "rows": metrics[0].count(b"\n"),
        "same_metrics": metrics[0] == metrics[1],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
