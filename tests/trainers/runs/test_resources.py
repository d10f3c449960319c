import dataclasses
import types

import psutil
import pytest

from trainers.distribute.strategies import make_strategy
from trainers.recipes.recipes import RECIPES
from trainers.runs import memory as resources
from trainers.runs.memory import (
    Memory,
    available_bytes,
    describe_memory,
    describe_shortage,
    estimate_job_memory,
    held_bytes,
    measure_seconds_per_step,
    warn_of_shortage,
)
from trainers.train import prepare

GB = 10**9
MEMORY = Memory(1 * GB, 1 * GB, 2 * GB, 0, 16 * GB)


def job_of(num_replicas=1, **changes):
    """Return a job with the fields that advice depends on."""
    recipe = dataclasses.replace(RECIPES["digits"], **changes)
    strategy = types.SimpleNamespace(num_replicas_in_sync=num_replicas)
    loop = types.SimpleNamespace(strategy=strategy)
    return types.SimpleNamespace(recipe=recipe, loop=loop)


def advice(available, **changes):
    text = describe_shortage(MEMORY, available, job_of(**changes))
    return text.partition("less memory: ")[2].rstrip(".").split(", ")


def test_what_fits_needs_no_advice():
    assert describe_shortage(MEMORY, 20 * GB, job_of()) == ""


def test_the_least_change_that_fits_is_named():
    """Of 4 GB that no batch changes, one more to accumulate, and 16 GB."""
    both = ["--use_remat", "--train_only=head (with --init_from)"]
    assert advice(13 * GB) == [
        "--accumulation_steps=2",
        "--batch_size=32",
        *both,
    ]
    # Accumulating needs 5 + 16 / 4 GB.
    assert advice(8.5 * GB) == [
        "--accumulation_steps=8",
        "--batch_size=16",
        *both,
    ]
    assert advice(8.5 * GB, accumulation_steps=2)[0] == "--accumulation_steps=8"
    assert advice(13 * GB, use_remat=True, lora_rank=2, init_from="a.npz") == [
        "--accumulation_steps=2",
        "--batch_size=32",
    ]


def test_parts_divide_the_batch_of_a_replica():
    assert advice(10.5 * GB, batch_size=12, num_replicas=4)[0] == (
        "--accumulation_steps=3"
    )
    assert "accumulation" not in advice(10 * GB, batch_size=1)[0]


def test_weights_that_do_not_fit_need_a_part_or_a_smaller_model():
    assert advice(3 * GB) == [
        "--use_remat",
        "--train_only=head (with --init_from)",
    ]
    least = {"use_remat": True, "lora_rank": 2, "init_from": "a.npz"}
    assert advice(3 * GB, **least) == ["a smaller model"]


def test_the_table_has_the_need_and_the_supply():
    lines = describe_memory(MEMORY, 7 * GB).splitlines()
    assert lines[-2].split() == ["total", "20.0", "GB"]
    assert lines[-1].split() == ["available", "7.00", "GB"]


@pytest.mark.parametrize(
    "limit, used, want",
    [("5000", "1000", 4000), ("max", "1000", 9000), ("50000", "10", 9000)],
)
def test_a_container_may_have_less_than_its_machine(
    tmp_path, monkeypatch, limit, used, want
):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    free = types.SimpleNamespace(available=9000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert available_bytes(make_strategy("one_device")) == want
    mirrored = make_strategy("mirrored")
    assert available_bytes(mirrored) == want // 2
    assert available_bytes(mirrored, held=70) == want // 2 + 70


def test_weights_and_slots_are_in_memory_already(recipe, tmp_path):
    job = prepare(recipe, str(tmp_path))
    need = estimate_job_memory(job)
    held = need.weights + need.optimizer + need.average
    assert 0 < held_bytes(job.loop) == held


def test_a_job_that_does_not_fit_warns(recipe, tmp_path, monkeypatch, capsys):
    job = prepare(recipe, str(tmp_path))
    capsys.readouterr()  # The data set may have been prepared.
    warn_of_shortage(job)
    assert capsys.readouterr().out == ""
    need = estimate_job_memory(job).total
    monkeypatch.setattr(resources, "LARGEST_BYTES_PER_FLOP", 1.0)
    monkeypatch.setattr(resources, "available_bytes", lambda *_: need - 1)
    warn_of_shortage(job)
    printed = capsys.readouterr().out
    assert printed.startswith("Warning: This does not fit: ")
    assert "--accumulation_steps=2" in printed


def test_steps_are_measured(recipe, tmp_path, monkeypatch):
    """By a clock that ticks once a call."""
    job = prepare(recipe, str(tmp_path))
    counts = []
    clock = iter(range(100))
    monkeypatch.setattr(resources.time, "perf_counter", lambda: next(clock))
    train = job.loop.inner.train

    def count(iterator, number, first):
        counts.append(int(number))
        return train(iterator, number, first)

    object.__setattr__(job.loop.inner, "train", count)
    assert measure_seconds_per_step(job) == pytest.approx(1 / 3)
    assert counts == [1, 3]
