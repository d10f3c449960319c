"""Two processes train on JAX: through a loss and a signal, as one would."""

import dataclasses
import os
import signal
import time

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, VisionTransformer
from tests import commands
from tests.ports import free_addresses

pytestmark = pytest.mark.slow(60)

# Plain descent: rounding by the order of a sum stays small.
WORDS = ["-m", "trainers.train", "--recipe=digits_exact", "--optimizer=sgd"]
WORDS += ["--learning_rate=0.05", "--total_steps=200", "--epochs_per_eval=1.0"]
WORDS += ["--steps_per_checkpoint=5", "--steps_per_loop=5", "--peak_tflops=1"]


@pytest.fixture
def start(subprocess_environment, tmp_path):
    """Return a function that starts a training on two virtual devices.

    It returns the process, and the file of what that prints.
    """
    started = []
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=2"
    choice = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags}

    def start_process(folder, *arguments):
        output = tmp_path / f"output-{len(started)}"
        words = [*WORDS, f"--run_dir={folder}", *arguments]
        environment = {**subprocess_environment, **choice}
        process = commands.start(words, environment, output)
        started.append(process)
        return process, output

    yield start_process
    for process in started:
        process.kill()
        process.join()


def start_two(start, folder, *arguments):
    addresses = free_addresses(2)
    words = ["--strategy=fsdp", f"--workers={','.join(addresses)}", *arguments]
    return addresses, [
        start(folder, *words, f"--worker_index={index}") for index in range(2)
    ]


def finish(started):
    process, output = started
    process.join(400)
    return process.exitcode, output.read_text()


def wait_for_checkpoint(folder, started, after=0):
    """Return when there is a checkpoint of more than `after` updates."""
    deadline = time.monotonic() + 400
    while True:
        names = [path.name for path in folder.glob("checkpoints/step-*")]
        newest = max((int(name[5:]) for name in names), default=0)
        if newest > after:
            return newest
        assert time.monotonic() < deadline
        for process, output in started:
            assert process.exitcode is None, output.read_text()
        time.sleep(0.01)


def test_two_processes_read_a_model_and_a_teacher(start, tmp_path):
    """A copy of another size, with LoRA, pictures and the best model kept."""
    config = dataclasses.replace(
        VARIANTS["mu/16"].config,
        image_size=16,
        patch_size=4,
        channels=1,
        num_classes=10,
    )
    path, folder = tmp_path / "model.keras", tmp_path / "run"
    VisionTransformer(config).save(path)
    words = [f"--init_from={path}", f"--teacher={path}", "--total_steps=5"]
    words += ["--lora_rank=2", "--keep_best", "--log_attention=1"]
    _, processes = start_two(start, folder, *words)
    for process in processes:
        code, output = finish(process)
        assert code == 0, output
    assert (folder / "lora.safetensors").exists()
    alone = start(tmp_path / "one", "--strategy=one_device", *words)
    code, output = finish(alone)
    assert code == 0, output
    assert_equal(folder, tmp_path / "one")


def assert_equal(folder, other):
    """Compare the models of two runs."""
    models = [
        keras.saving.load_model(path / "model.keras", compile=False)
        for path in (folder, other)
    ]
    for a, b in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_two_processes_through_a_kill_and_a_signal(start, tmp_path):
    """They end, alone on other devices, with the weights of one device."""
    folder, whole = tmp_path / "run", tmp_path / "one"
    addresses, (one, other) = start_two(start, folder)
    reached = wait_for_checkpoint(folder, (one, other))
    one[0].kill()  # By itself, JAX would abort the other one.
    code, output = finish(other)
    assert code == 69, output
    assert f"no longer responds: worker 0 ({addresses[0]})" in output

    _, (one, other) = start_two(start, folder)
    wait_for_checkpoint(folder, (one, other), after=reached)
    os.kill(other[0].pid, signal.SIGTERM)
    for process in (one, other):
        code, output = finish(process)
        assert code == 75, output
        assert "Stopped and saved after update" in output
    assert len(list(folder.glob("checkpoints/step-*/*.safetensors"))) == 4

    alone = start(whole, "--strategy=one_device")
    code, output = finish(start(folder, "--strategy=fsdp"))  # Of one process.
    assert code == 0, output
    assert "fsdp on 2 devices" in output
    assert finish(alone)[0] == 0
    assert_equal(whole, folder)
