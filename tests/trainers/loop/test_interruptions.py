"""Trainings of several processes, and trainings that are broken off."""

import dataclasses
import json
import os
import signal
import time

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, VisionTransformer
from tests import commands
from tests.ports import free_addresses
from trainers.loop.metrics import read_metrics
from trainers.recipes.recipes import RECIPES
from trainers.runs.run import Run
from trainers.train import prepare, train

pytestmark = pytest.mark.slow(200)

# Rounding that differs by the order of a sum stays small under plain descent,
# however many updates there are.
CHOICES = {
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "total_steps": 300,
    "epochs_per_eval": 1.0,
    "steps_per_checkpoint": 20,
    "steps_per_loop": 5,
    "peak_tflops": 1.0,  # Not measured.
}


def words_for(folder, *arguments):
    """Return what a user types after `python`."""
    choices = [f"--{name}={value}" for name, value in CHOICES.items()]
    command = ["-m", "trainers.train", "--recipe=digits_exact", *choices]
    return [*command, f"--run_dir={folder}", *arguments]


@pytest.fixture
def start(subprocess_environment, tmp_path):
    """Return a function that starts `trainers.train` as a user would.

    It returns the process, and the file of what that prints.
    """
    started = []

    def start_process(folder, *arguments):
        command = words_for(folder, *arguments)
        output = tmp_path / f"output-{len(started)}"
        process = commands.start(command, subprocess_environment, output)
        started.append(process)
        return process, output

    yield start_process
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
def start_two(start):
    """Return a function that starts two processes that train together."""

    def start_pair(folder, *arguments):
        workers = ",".join(free_addresses(2))
        return [
            start(
                folder,
                "--strategy=multi_worker",
                f"--workers={workers}",
                f"--worker_index={index}",
                *arguments,
            )
            for index in range(2)
        ]

    return start_pair


def finish(started, seconds=200):
    """Return exit code and output of a process that is to end by itself."""
    process, output = started
    process.join(seconds)
    return process.exitcode, output.read_text()


def wait_for_checkpoint(folder, started, after=0):
    """Return when there is a checkpoint of more than `after` updates."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        names = [path.name for path in folder.glob("checkpoints/step-*")]
        steps = [int(name.removeprefix("step-")) for name in names]
        if max(steps, default=0) > after:
            return max(steps)
        for process, output in started:
            assert process.exitcode is None, output.read_text()
        time.sleep(0.01)
    raise AssertionError("no checkpoint")


def weights_of(folder):
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    return model.get_weights()


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """Return the folder of an unbroken run on one device.

    The command makes it. In this process, TensorFlow would rewrite some graphs
    of it and others not, depending on the tests before.
    """
    folder = tmp_path_factory.mktemp("one") / "run"
    result = commands.run(words_for(folder), commands.environment())
    assert result.returncode == 0, result.stderr
    return folder


def test_two_workers_through_a_kill_and_a_signal(start_two, request, tmp_path):
    """They end with the weights and the metrics of one device."""
    folder = tmp_path / "run"

    one, other = start_two(folder)
    reached = wait_for_checkpoint(folder, (one, other))
    os.kill(other[0].pid, signal.SIGKILL)
    code, output = finish(one)
    assert code == 69, output
    assert "Another worker no longer responds" in output

    one, other = start_two(folder)
    reached = wait_for_checkpoint(folder, (one, other), after=reached)
    os.kill(other[0].pid, signal.SIGTERM)
    for process in (one, other):
        code, output = finish(process)
        assert code == 75, output
        assert "Stopped and saved after update" in output
        assert "Run the same command again to continue." in output
    assert reached < 300

    one, other = start_two(folder)
    one_device = request.getfixturevalue("one_device")  # Beside them.
    code, output = finish(one)
    assert code == 0, output
    assert "multi_worker on 2 devices" in output
    code, silent = finish(other)
    assert code == 0, silent
    assert "val_accuracy" not in silent  # The first one speaks for both.

    for a, b in zip(weights_of(one_device), weights_of(folder), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    rows = [read_metrics(Run(f).metrics_path) for f in (one_device, folder)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    for a, b in zip(*rows):
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            assert a[name] == pytest.approx(b[name], rel=1e-4), name


@pytest.mark.parametrize("subject", ["recipe", "weights"])
def test_workers_that_differ_end_before_the_first_update(
    start, tmp_path, subject
):
    folder = tmp_path / "run"
    flags = {"recipe": ["--seed=0", "--seed=1"]}
    if subject == "weights":
        flags["weights"] = []
        for seed in range(2):
            keras.utils.set_random_seed(seed)
            config = dataclasses.replace(
                VARIANTS["mu/16"].config,
                image_size=8,
                patch_size=2,
                channels=1,
                num_classes=10,
            )
            path = tmp_path / f"{seed}.keras"
            VisionTransformer(config).save(path)
            flags["weights"].append(f"--init_from={path}")
    addresses = free_addresses(2)
    workers = [
        start(
            folder,
            "--strategy=multi_worker",
            f"--workers={','.join(addresses)}",
            f"--worker_index={index}",
            flag,
        )
        for index, flag in enumerate(flags[subject])
    ]
    for worker in workers:
        code, output = finish(worker)
        assert code == 1, output
        assert f"Error: All workers must have the same {subject}." in output
        assert f"worker 1 ({addresses[1]}) differs in " in output
        assert "Traceback" not in output
    assert not folder.exists()


def test_two_workers_make_the_updates_of_one_device(start_two, tmp_path):
    """Those of AdamW, in two parts each, clipped, decayed and averaged."""
    recipe = RECIPES["digits_exact"]
    assert recipe.optimizer == "adamw" and recipe.total_steps == 20
    assert recipe.clip_norm and recipe.weight_decay and recipe.average_decay
    one, two = tmp_path / "one", tmp_path / "two"
    changes = {name: getattr(recipe, name) for name in CHOICES}
    changes |= {"accumulation_steps": 2, "steps_per_checkpoint": 20}
    changes |= {"peak_tflops": 1.0}
    flags = [f"--{name}={value}" for name, value in changes.items()]
    started = start_two(two, *flags)
    train(prepare(recipe, str(one)))  # Beside them.
    for process in started:
        code, output = finish(process)
        assert code == 0, output
    for a, b in zip(weights_of(one), weights_of(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    rows = [read_metrics(Run(folder).metrics_path) for folder in (one, two)]
    assert rows[0]
    for a, b in zip(*rows, strict=True):
        for name in ("step", "loss", "accuracy", "val_loss", "val_accuracy"):
            assert a[name] == pytest.approx(b[name], rel=1e-5), name


def test_after_a_kill_and_a_signal_the_same_command_ends_to_the_bit(
    start, one_device, tmp_path
):
    folder = tmp_path / "run"
    process = start(folder)
    reached = wait_for_checkpoint(folder, [process])
    os.kill(process[0].pid, signal.SIGKILL)
    process = start(folder)
    wait_for_checkpoint(folder, [process], after=reached)
    before = time.monotonic()
    os.kill(process[0].pid, signal.SIGTERM)
    code, output = finish(process)
    assert code == 75, output
    assert "Stopped and saved after update" in output
    assert time.monotonic() - before < 100
    code, output = finish(start(folder))
    assert code == 0, output
    for a, b in zip(weights_of(one_device), weights_of(folder), strict=True):
        np.testing.assert_array_equal(a, b)
    rows = [read_metrics(Run(f).metrics_path) for f in (one_device, folder)]
    for a, b in zip(*rows, strict=True):
        for name in ("step", "loss", "accuracy", "val_loss", "val_accuracy"):
            assert a[name] == b[name], name


def test_kills_at_random_moments_leave_no_trace(
    subprocess_environment, tmp_path
):
    """Weights, optimizer, averages and metrics are those of an unbroken run."""
    words = ["-m", "tests.trainers.loop.kill_again", tmp_path, 24]
    result = commands.run(words, subprocess_environment)
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["exit"] == 0, result.stderr[-3000:]
    assert report["kills"] >= 24
    assert report["in_a_save"] >= 6
    assert report["arrays"] > 15 and report["rows"] == 21
    assert report["different"] == []
    assert report["same_metrics"]
