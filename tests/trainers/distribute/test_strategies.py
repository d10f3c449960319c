import contextlib
import types

import pytest
import tensorflow as tf

from trainers.distribute import strategies
from trainers.distribute.cluster import WorkerConfig
from trainers.distribute.strategies import (
    make_strategy,
)
from trainers.distribute.workers import is_chief, num_workers, wait_for_all


@pytest.mark.parametrize("name, replicas", [("one_device", 1), ("mirrored", 2)])
def test_strategies_of_one_process(name, replicas):
    strategy = make_strategy(name)
    assert strategy.num_replicas_in_sync == replicas
    assert num_workers(strategy) == 1
    assert is_chief(strategy)
    wait_for_all(strategy)
    # A second mirrored one would confuse its sums with those of the first.
    assert name != "mirrored" or make_strategy(name) is strategy


def test_the_workers_meet_only_once(monkeypatch):
    """A sweep trains several times in one process."""
    jobs = {"worker": ["a.example:12", "b.example:13"]}
    cluster = types.SimpleNamespace(
        cluster_spec=lambda: tf.train.ClusterSpec(jobs),
        task_type="worker",
        task_id=0,
    )
    met = []
    for name, stand_in in (
        ("find_cluster", lambda config: cluster),
        ("wait_for_workers", lambda *call: met.append(call)),
        ("kill_after", contextlib.nullcontext),
    ):
        monkeypatch.setattr(strategies, name, stand_in)
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", types.SimpleNamespace
    )
    config = WorkerConfig(",".join(jobs["worker"]), 0)
    found = [make_strategy("multi_worker", config) for _ in range(2)]
    strategies.multi_worker.cache_clear()
    assert found[0] is found[1] and len(met) == 1


def test_unknown_names_are_answered_with_the_known():
    with pytest.raises(ValueError, match="`strategy` must be one of .one_dev"):
        make_strategy("two_devices")
    with pytest.raises(ValueError, match="`workers` needs `strategy='multi"):
        make_strategy("mirrored", WorkerConfig("a.example:12,b.example:13", 0))
