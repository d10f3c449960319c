"""The calculated memory and time of trainings on many devices."""

import dataclasses

import pytest

from benchmarks import scale
from benchmarks.flops import num_parameters
from keras_vit import VARIANTS
from tests import commands


@pytest.mark.parametrize("name", ["B/16", "L/16", "H/14"])
def test_weights_are_those_of_the_closed_form(name):
    config = VARIANTS[name].config
    total, in_blocks = scale.count_weights(config)
    assert total == num_parameters(config)
    fewer = dataclasses.replace(config, depth=config.depth - 1)
    block = num_parameters(config) - num_parameters(fewer)
    # The rest of a block: two norms, and the biases of two dense layers.
    assert in_blocks == config.depth * (block - 6 * config.width)


def test_devices_share_the_state():
    config = VARIANTS["B/16"].config
    whole = scale.count_memory(config, "data parallel", 8, 4)
    split = scale.count_memory(config, "fully sharded", 8, 4)
    assert whole.state == 12 * num_parameters(config)
    assert (whole.gradients, whole.collected) == (whole.state / 3, 0)
    assert split.state == whole.state / 8
    assert split.activations == whole.activations
    # As many images in all: eight times those of a device.
    both = scale.count_memory(config, "tensor parallel 8", 8, 32)
    tokens, width = 197, config.width
    kept = 4 * 4 * 32 * config.depth * tokens * width
    assert both.activations - kept == whole.activations - kept / 8


def test_a_sum_in_a_ring():
    # Two halves, each sent once to sum it and once to return it.
    assert scale.sum_seconds(1000, False, 2, 1e3, 4) == 4.0
    # Weights are collected twice, gradients summed once.
    assert scale.sum_seconds(1000, True, 2, 1e3, 4) == 6.0
    assert scale.visible_seconds(8.0, 6.0, False) == 4.0
    assert scale.visible_seconds(8.0, 6.0, True) == 2.0
    assert scale.visible_seconds(8.0, 60.0, True) == 0.5


def test_an_update_waits_for_its_input():
    assert scale.Seconds(4.0, 3.0, 1.0, 2.0, 0.5).update == 5.5
    assert scale.Seconds(4.0, 3.0, 1.0, 9.0, 0.5).update == 9.5


def test_the_command_prints_each_cluster(capsys):
    scale.main(["--models=Ti/16", "--devices=1,8"])
    memory, seconds = capsys.readouterr().out.split("\n\n")
    # A single device shares no layer.
    assert len(memory.splitlines()) == 3 + 2 + len(scale.WAYS)
    assert len(seconds.splitlines()) == 3 + 2 * 2


def test_xla_needs_what_is_calculated():
    """Without values for the weights, see --compile."""
    flags = "--xla_force_host_platform_device_count=2"
    environment = commands.environment() | {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": flags,
    }
    words = ["--compile", "--models=Ti/16", "--ways=data parallel"]
    done = commands.run(
        ["-m", "benchmarks.scale", *words, "--images=16"], environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ratio = float(done.stdout.splitlines()[-1].split("|")[-2])
    assert 0.9 < ratio < 1.3
