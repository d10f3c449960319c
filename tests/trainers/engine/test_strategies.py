import contextlib
import types

import pytest
import tensorflow as tf

from trainers.engine import tensorflow as engines
from trainers.engine.cluster import WorkerConfig
from trainers.engine.strategies import make_engine


@pytest.mark.parametrize("name, replicas", [("one_device", 1), ("mirrored", 2)])
def test_strategies_of_one_process(name, replicas):
    engine = make_engine(name)
    assert engine.num_replicas == replicas
    assert engine.num_processes == 1
    assert engine.is_writer
    engine.wait_for_all()
    # A second mirrored one would confuse its sums with those of the first.
    again = make_engine(name).strategy
    assert name != "mirrored" or again is engine.strategy


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
        monkeypatch.setattr(engines, name, stand_in)
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", types.SimpleNamespace
    )
    config = WorkerConfig(",".join(jobs["worker"]), 0)
    found = [engines.multi_worker(config) for _ in range(2)]
    engines.multi_worker.cache_clear()
    assert found[0] is found[1] and len(met) == 1


def test_unknown_names_are_answered_with_the_known():
    with pytest.raises(ValueError, match="`strategy` must be one of .one_dev"):
        make_engine("two_devices")
    with pytest.raises(ValueError, match="`workers` needs `strategy='multi"):
        make_engine("mirrored", WorkerConfig("a.example:12,b.example:13", 0))
    with pytest.raises(ValueError, match="`model_devices` needs"):
        make_engine("mirrored", model_devices=2)
