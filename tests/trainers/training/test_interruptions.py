"""Trainings of several processes, and trainings that are broken off."""

import contextlib
import dataclasses
import functools
import os
import random
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import VARIANTS, VisionTransformer
from tests import commands
from tests.ports import free_addresses
from trainers.engine.pieces import Pieces, are_pieces
from trainers.training.report import read_metrics
from trainers.training.run_folder import RunFolder

pytestmark = pytest.mark.slow(200)

# Rounding that differs by the order of a sum stays small under plain descent,
# however many updates there are.
CHOICES = {
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "total_steps": 200,
    "epochs_per_eval": 1.0,
    "steps_per_checkpoint": 10,
    "steps_per_loop": 5,
    "peak_tflops": 1.0,  # Not measured.
}


def words_for(folder, *arguments):
    """Return what a user types after `python`."""
    choices = [f"--{name}={value}" for name, value in CHOICES.items()]
    command = ["-m", "trainers.train", "--recipe=digits_exact", *choices]
    return [*command, f"--run_dir={folder}", *arguments]


@pytest.fixture
def start(tmp_path):
    """Return a function that starts `trainers.train` as a user would.

    It returns the process, and the file of what that prints.
    """
    started = []

    def start_process(folder, *arguments):
        command = words_for(folder, *arguments)
        output = tmp_path / f"output-{len(started)}"
        process = commands.start(command, commands.environment(), output)
        started.append(process)
        return process, output

    yield start_process
    for process in started:
        process.kill()
        process.join()


def start_two(start, folder, *options):
    """Start two processes that train together; options of each, if any."""
    addresses = free_addresses(2)
    words = ["--strategy=multi_worker", f"--workers={','.join(addresses)}"]
    return addresses, [
        start(folder, *words, f"--worker_index={index}", *options[index:][:1])
        for index in range(2)
    ]


def finish(started, seconds=200):
    """Return exit code and output of a process that is to end by itself."""
    process, output = started
    process.join(seconds)
    return process.exitcode, output.read_text()


def newest(folder):
    """Return the step of the newest checkpoint, 0 if there is none."""
    names = [path.name for path in folder.glob("checkpoints/step-*")]
    return max((int(name[5:]) for name in names), default=0)


def wait_for_checkpoint(folder, started, after=0):
    """Return when there is a checkpoint of more than `after` updates."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if newest(folder) > after:
            return newest(folder)
        for process, output in started:
            assert process.exitcode is None, output.read_text()
        time.sleep(0.01)
    raise AssertionError("no checkpoint")


def weights_of(folder):
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    return model.get_weights()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return a function that returns the folder of an unbroken run.

    The command makes it, on one device of a backend. In this process,
    TensorFlow would rewrite some graphs of it and others not, depending on the
    tests before.
    """

    @functools.cache
    def make(backend):
        folder = tmp_path_factory.mktemp(backend) / "run"
        environment = {**commands.environment(), "KERAS_BACKEND": backend}
        result = commands.run(words_for(folder), environment)
        assert result.returncode == 0, result.stderr
        return folder

    return make


METRICS = ("step", "loss", "accuracy", "val_loss", "val_accuracy")


def metrics_of(folder):
    rows = read_metrics(RunFolder(folder).metrics_path)
    return [[row[name] for name in METRICS] for row in rows]


def test_two_workers_through_a_kill_and_a_signal(start, unbroken, tmp_path):
    """They end with the weights and the metrics of one device.

    Each cuts its part in two; the gradients are clipped, the weights decayed
    and averaged.
    """
    folder, parts = tmp_path / "run", ["--accumulation_steps=2"] * 2

    _, (one, other) = start_two(start, folder, *parts)
    reached = wait_for_checkpoint(folder, (one, other))
    os.kill(other[0].pid, signal.SIGKILL)
    code, output = finish(one)
    assert code == 69, output
    assert "Another worker no longer responds" in output

    _, (one, other) = start_two(start, folder, *parts)
    reached = wait_for_checkpoint(folder, (one, other), after=reached)
    os.kill(other[0].pid, signal.SIGTERM)
    for process in (one, other):
        code, output = finish(process)
        assert code == 75, output
        assert "Stopped and saved after update" in output
    assert reached < 200

    _, (one, other) = start_two(start, folder, *parts)
    one_device = unbroken("tensorflow")  # Beside them.
    code, output = finish(one)
    assert code == 0, output
    assert "multi_worker on 2 devices" in output
    code, silent = finish(other)
    assert code == 0, silent
    assert "val_accuracy" not in silent  # The first one speaks for both.

    for a, b in zip(weights_of(one_device), weights_of(folder), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        metrics_of(one_device), metrics_of(folder), rtol=1e-4
    )


@pytest.mark.parametrize("subject", ["recipe", "weights"])
def test_workers_that_differ_end_before_the_first_update(
    start, tmp_path, subject
):
    folder, options = tmp_path / "run", ["--seed=0", "--seed=1"]
    if subject == "weights":
        sizes = {"image_size": 8, "patch_size": 2, "channels": 1}
        config = dataclasses.replace(
            VARIANTS["mu/16"].config, num_classes=10, **sizes
        )
        for seed in range(2):
            keras.utils.set_random_seed(seed)
            path = tmp_path / f"{seed}.keras"
            VisionTransformer(config).save(path)
            options[seed] = f"--init_from={path}"
    addresses, workers = start_two(start, folder, *options)
    for worker in workers:
        code, output = finish(worker)
        assert code == 1, output
        assert f"Error: All workers must have the same {subject}." in output
        assert f"worker 1 ({addresses[1]}) differs in " in output
        assert "Traceback" not in output
    assert not folder.exists()


def drafts(folder):
    """Return the names of saves that did not end, and when each began."""
    found = folder.glob("checkpoints/.draft*")
    return {(path.name, path.stat().st_ctime_ns) for path in found}


def kill_within_a_save(folder, process):
    """Kill a process when it has begun to write a checkpoint."""
    before = drafts(folder)
    with contextlib.suppress(FileNotFoundError):  # It ended just now.
        while process.is_alive() and not drafts(folder) - before:
            time.sleep(0.001)
    process.kill()


def final_state(folder):
    """Return {name: bytes} of the last checkpoint."""
    path = f"{folder}/checkpoints/step-{CHOICES['total_steps']:08d}/state"
    if are_pieces(path):
        pieces = Pieces(path)
        return {name: pieces.read(name).tobytes() for name in pieces.shapes}
    reader = tf.train.load_checkpoint(path)
    names = reader.get_variable_to_shape_map()
    arrays = {n: reader.get_tensor(n) for n in names if "OBJECT" not in n}
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_after_kills_and_a_signal_the_same_command_ends_to_the_bit(
    start, unbroken, tmp_path, monkeypatch, backend
):
    """Weights, optimizer, averages and metrics; one kill is within a save."""
    monkeypatch.setenv("KERAS_BACKEND", backend)
    folder, draws = tmp_path / "run", random.Random(0)
    process = start(folder)
    reached = wait_for_checkpoint(folder, [process])
    time.sleep(draws.random() / 10)
    process[0].kill()
    process[0].join()
    process = start(folder)
    wait_for_checkpoint(folder, [process], after=reached)
    kill_within_a_save(folder, process[0])
    process[0].join()
    reached, process = newest(folder), start(folder)
    wait_for_checkpoint(folder, [process], after=reached)
    os.kill(process[0].pid, signal.SIGTERM)
    code, output = finish(process)
    assert code == 75, output
    assert "Stopped and saved after update" in output
    assert "Run the same command again to continue." in output
    code, output = finish(start(folder))
    assert code == 0, output
    whole = unbroken(backend)
    one, other = final_state(whole), final_state(folder)
    assert len(one) > 50 and one == other
    assert metrics_of(whole) == metrics_of(folder)
    for a, b in zip(weights_of(whole), weights_of(folder), strict=True):
        np.testing.assert_array_equal(a, b)
