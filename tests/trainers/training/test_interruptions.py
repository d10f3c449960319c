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
# however many updates there are. Those of 120 leave seconds for the kills.
TOTAL_STEPS = 120
WORDS = ["--recipe=digits_exact", "--optimizer=sgd", "--learning_rate=0.05"]
WORDS += [f"--total_steps={TOTAL_STEPS}", "--epochs_per_eval=1.0"]
WORDS += ["--steps_per_checkpoint=10", "--steps_per_loop=5"]
WORDS += ["--peak_tflops=1.0"]  # Not measured.

# Without pictures, and without graphs that TensorFlow rewrites, which few
# updates repay. Both are as ever in tests/trainers/test_cluster.py.
TRAIN = """
import runpy
import tensorflow as tf
from trainers.training import trainer
trainer.draw_first_batch = trainer.plot_learning_curve = lambda *arguments: None
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
runpy.run_module("trainers.train", run_name="__main__", alter_sys=True)
"""


def words_for(folder, *arguments):
    """Return the words behind `python` that train."""
    return ["-c", TRAIN, *WORDS, f"--run_dir={folder}", *arguments]


def words_of_sweep(folder, *arguments):
    """Return the words behind `python` that train twice."""
    script = TRAIN.replace('"trainers.train"', '"trainers.sweep"')
    words = [f"--sweep_dir={folder}", "--learning_rates=0.05", "--num_seeds=2"]
    return ["-c", script, *WORDS, *words, *arguments]


def environment_on(backend, num_devices=1):
    flags = os.environ.get("XLA_FLAGS", "")
    flags += f" --xla_force_host_platform_device_count={num_devices}"
    choice = {"KERAS_BACKEND": backend, "XLA_FLAGS": flags}
    return commands.environment() | choice


@pytest.fixture
def start(tmp_path):
    """Return a function that starts `trainers.train` as a user would.

    It returns the process, and the file of what that prints.
    """
    started = []

    def start_process(folder, *arguments, words_for=words_for, **where):
        words = words_for(folder, *arguments)
        environment = environment_on(**{"backend": "tensorflow", **where})
        output = tmp_path / f"output-{len(started)}"
        process = commands.start(words, environment, output)
        started.append(process)
        return process, output

    yield start_process
    for process in started:
        process.kill()
        process.join()


def start_two(start, *words, options=("--seed=0",) * 2, **where):
    """Start two processes that train together; an option of each."""
    addresses = free_addresses(2)
    words = [*words, f"--workers={','.join(addresses)}"]
    return addresses, [
        start(*words, f"--worker_index={index}", option, **where)
        for index, option in enumerate(options)
    ]


def finish(started, seconds=400):
    """Return exit code and output of a process that is to end by itself."""
    process, output = started
    process.join(seconds)
    return process.exitcode, output.read_text()


def ends_with(code, started):
    """Return the output of a process that is to end with this code."""
    found, output = finish(started)
    assert found == code, output
    return output


def assert_close(one, other):
    """Compare the models of two runs."""
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


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

    The command makes it, on one device of a backend.
    """

    @functools.cache
    def make(backend):
        folder = tmp_path_factory.mktemp(backend) / "run"
        result = commands.run(words_for(folder), environment_on(backend))
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
    folder = tmp_path / "run"
    words = [folder, "--strategy=multi_worker", "--accumulation_steps=2"]

    _, (one, other) = start_two(start, *words)
    reached = wait_for_checkpoint(folder, (one, other))
    os.kill(other[0].pid, signal.SIGKILL)
    assert "Another worker no longer responds" in ends_with(69, one)

    _, (one, other) = start_two(start, *words)
    reached = wait_for_checkpoint(folder, (one, other), after=reached)
    os.kill(other[0].pid, signal.SIGTERM)
    for process in (one, other):
        assert "Stopped and saved after update" in ends_with(75, process)
    assert reached < TOTAL_STEPS

    _, (one, other) = start_two(start, *words)
    one_device = unbroken("tensorflow")  # Beside them.
    assert "multi_worker on 2 devices" in ends_with(0, one)
    # The first one speaks for both.
    assert "val_accuracy" not in ends_with(0, other)

    assert_close(one_device, folder)
    np.testing.assert_allclose(
        metrics_of(one_device), metrics_of(folder), rtol=1e-4
    )


def test_workers_that_differ_end_before_the_first_update(start, tmp_path):
    """That recipes are compared as well, see test_preparation.py."""
    folder, options = tmp_path / "run", []
    for seed in range(2):
        keras.utils.set_random_seed(seed)
        save_model(tmp_path / f"{seed}.keras", image_size=8, patch_size=2)
        options.append(f"--init_from={tmp_path}/{seed}.keras")
    words = [folder, "--strategy=multi_worker"]
    addresses, workers = start_two(start, *words, options=options)
    for worker in workers:
        output = ends_with(1, worker)
        assert "Error: All workers must have the same weights." in output
        assert f"worker 1 ({addresses[1]}) differs in " in output
        assert "Traceback" not in output
    assert not folder.exists()


def save_model(path, **sizes):
    config = VARIANTS["mu/16"].config
    config = dataclasses.replace(config, channels=1, num_classes=10, **sizes)
    VisionTransformer(config).save(path)


ON_JAX = {"backend": "jax", "num_devices": 2}


def test_two_processes_of_jax_read_a_model_and_a_teacher(start, tmp_path):
    """A copy of another size, with LoRA, pictures and the best model kept."""
    path, folder = tmp_path / "model.keras", tmp_path / "run"
    save_model(path, image_size=16, patch_size=4)
    words = [f"--init_from={path}", f"--teacher={path}", "--total_steps=5"]
    words += ["--lora_rank=2", "--keep_best", "--log_attention=1"]
    _, processes = start_two(start, folder, "--strategy=fsdp", *words, **ON_JAX)
    for process in processes:
        ends_with(0, process)
    assert (folder / "lora.safetensors").exists()
    ends_with(0, start(tmp_path / "one", *words, **ON_JAX))
    assert_close(folder, tmp_path / "one")


def test_two_processes_of_jax_train_twice_in_a_sweep(start, tmp_path):
    words = ["--strategy=data_parallel", "--total_steps=2"]
    words += ["--warmup_steps=0"]
    options = {"words_for": words_of_sweep, **ON_JAX}
    _, processes = start_two(start, tmp_path / "sweep", *words, **options)
    for process in processes:
        ends_with(0, process)
    assert len([*tmp_path.glob("sweep/*/model.keras")]) == 2


def test_two_processes_of_jax_through_a_kill_and_a_signal(
    start, unbroken, tmp_path
):
    """They end, alone on other devices, with the weights of one device."""
    folder = tmp_path / "run"
    words = [folder, "--strategy=fsdp", "--steps_per_checkpoint=5"]
    addresses, (one, other) = start_two(start, *words, **ON_JAX)
    reached = wait_for_checkpoint(folder, (one, other))
    one[0].kill()  # By itself, JAX would abort the other one.
    lost = f"no longer responds: worker 0 ({addresses[0]})"
    assert lost in ends_with(69, other)

    _, (one, other) = start_two(start, *words, **ON_JAX)
    wait_for_checkpoint(folder, (one, other), after=reached)
    os.kill(other[0].pid, signal.SIGTERM)
    for process in (one, other):
        assert "Stopped and saved after update" in ends_with(75, process)
    assert len(list(folder.glob("checkpoints/step-*/*.safetensors"))) == 4

    alone = start(*words, **ON_JAX)  # Of one process.
    one_device = unbroken("jax")
    assert "fsdp on 2 devices" in ends_with(0, alone)
    assert_close(one_device, folder)


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
    path = f"{folder}/checkpoints/step-{TOTAL_STEPS:08d}/state"
    if are_pieces(path):
        pieces = Pieces(path)
        return {name: pieces.read(name).tobytes() for name in pieces.shapes}
    reader = tf.train.load_checkpoint(path)
    names = reader.get_variable_to_shape_map()
    arrays = {n: reader.get_tensor(n) for n in names if "OBJECT" not in n}
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_after_kills_and_a_signal_the_same_command_ends_to_the_bit(
    start, unbroken, tmp_path, backend
):
    """Weights, optimizer, averages and metrics; one kill is within a save."""
    folder, draws = tmp_path / "run", random.Random(0)
    process = start(folder, backend=backend)
    reached = wait_for_checkpoint(folder, [process])
    time.sleep(draws.random() / 10)
    process[0].kill()
    process[0].join()
    process = start(folder, backend=backend)
    wait_for_checkpoint(folder, [process], after=reached)
    kill_within_a_save(folder, process[0])
    process[0].join()
    reached, process = newest(folder), start(folder, backend=backend)
    wait_for_checkpoint(folder, [process], after=reached)
    os.kill(process[0].pid, signal.SIGTERM)
    output = ends_with(75, process)
    assert "Stopped and saved after update" in output
    assert "Run the same command again to continue." in output
    ends_with(0, start(folder, backend=backend))
    whole = unbroken(backend)
    one, other = final_state(whole), final_state(folder)
    assert len(one) > 50 and one == other
    assert metrics_of(whole) == metrics_of(folder)
    for a, b in zip(weights_of(whole), weights_of(folder), strict=True):
        np.testing.assert_array_equal(a, b)
