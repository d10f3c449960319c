import dataclasses
import types

import psutil
import pytest

from trainers.engine.strategies import make_engine
from trainers.recipes.recipes import RECIPES
from trainers.training import memory as resources
from trainers.training.memory import (
    Memory,
    available_bytes,
    describe_memory,
    describe_shortage,
    estimate_training_memory,
    held_bytes,
    warn_of_shortage,
)
from trainers.training.trainer import prepare

GB = 10**9
MEMORY = Memory(1 * GB, 1 * GB, 2 * GB, 0, 16 * GB)


def job_of(num_replicas=1, **changes):
    """Return a trainer with the fields that advice depends on."""
    recipe = dataclasses.replace(RECIPES["digits"], **changes)
    engine = types.SimpleNamespace(num_replicas=num_replicas)
    loop = types.SimpleNamespace(engine=engine)
    return types.SimpleNamespace(recipe=recipe, loop=loop)


def advice(available, **changes):
    text = describe_shortage(MEMORY, available, job_of(**changes))
    return text.partition("less memory: ")[2].rstrip(".").split(", ")


def test_the_least_change_that_fits_is_named():
    """Of 4 GB that no batch changes, one more to accumulate, and 16 GB."""
    assert describe_shortage(MEMORY, 20 * GB, job_of()) == ""
    parts, batch, *both = advice(13 * GB)
    assert (parts, batch) == ("--accumulation_steps=2", "--batch_size=32")
    assert [text.partition("=")[0] for text in both] == [
        "--use_remat",
        "--train_only",
    ]
    # Accumulating needs 5 + 16 / 4 GB.
    parts, batch, *_ = advice(8.5 * GB)
    assert (parts, batch) == ("--accumulation_steps=8", "--batch_size=16")
    assert advice(8.5 * GB, accumulation_steps=2)[0] == parts
    least = {"use_remat": True, "lora_rank": 2, "init_from": "a.npz"}
    assert len(advice(13 * GB, **least)) == 2
    # Parts divide the batch of a replica.
    parts = advice(10.5 * GB, batch_size=12, num_replicas=4)[0]
    assert parts == "--accumulation_steps=3"
    # No batch is small enough.
    assert advice(3 * GB) == both
    assert advice(3 * GB, **least) == ["a smaller model"]


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
    assert available_bytes(make_engine("one_device")) == want
    mirrored = make_engine("mirrored")
    assert available_bytes(mirrored) == want // 2
    assert available_bytes(mirrored, held=70) == want // 2 + 70


def test_a_job_that_does_not_fit_warns(recipe, tmp_path, monkeypatch, capsys):
    trainer = prepare(recipe, str(tmp_path))
    held = held_bytes(trainer.loop)
    need = estimate_training_memory(trainer)
    assert 0 < held == need.weights + need.optimizer + need.average
    table = describe_memory(need, 7 * GB).splitlines()
    assert table[-1].split() == ["available", "7.00", "GB"]
    capsys.readouterr()  # The data set may have been prepared.
    warn_of_shortage(trainer)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(resources, "LARGEST_BYTES_PER_FLOP", 1.0)
    monkeypatch.setattr(resources, "available_bytes", lambda *_: need.total - 1)
    warn_of_shortage(trainer)
    printed = capsys.readouterr().out
    assert printed.startswith("Warning: This does not fit: ")
    assert "--accumulation_steps=2" in printed
