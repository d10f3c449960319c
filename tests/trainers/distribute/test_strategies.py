import json

import pytest
import tensorflow as tf

from trainers.distribute import strategies
from trainers.distribute.rendezvous import WorkerLostError
from trainers.distribute.strategies import (
    STRATEGIES,
    Place,
    assign_on_replicas,
    find_cluster,
    is_chief,
    make_strategy,
    name_lost_workers,
    num_workers,
    wait_for_all,
)

ADDRESSES = "a.example:12,b.example:13"
SURROUNDINGS = (
    "TF_CONFIG",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in SURROUNDINGS:
        monkeypatch.delenv(name, raising=False)


def tf_config(kind="worker", index=0, **jobs):
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize("name, replicas", [("one_device", 1), ("mirrored", 2)])
def test_strategies_of_one_process(name, replicas):
    strategy = make_strategy(name)
    assert strategy.num_replicas_in_sync == replicas
    assert num_workers(strategy) == 1
    assert is_chief(strategy)
    wait_for_all(strategy)


def test_there_is_one_mirrored_strategy():
    """A second one would confuse its sums with those of the first."""
    assert make_strategy("mirrored") is make_strategy("mirrored")


def test_unknown_names_are_answered_with_the_known():
    with pytest.raises(ValueError, match="`strategy` must be one of .one_dev"):
        make_strategy("two_devices")
    assert list(STRATEGIES) == ["one_device", "mirrored", "multi_worker", "tpu"]


def test_cluster_of_addresses():
    cluster = find_cluster(Place(ADDRESSES.replace(",", " , "), 1))
    assert cluster.cluster_spec().as_dict() == {
        "worker": ["a.example:12", "b.example:13"]
    }
    assert (cluster.task_type, cluster.task_id) == ("worker", 1)


def test_cluster_of_tf_config(monkeypatch):
    workers = ["a:1", "b:2", "c:3"]
    monkeypatch.setenv("TF_CONFIG", tf_config(index=2, worker=workers))
    cluster = find_cluster(Place())
    assert cluster.cluster_spec().as_dict() == {"worker": workers}
    assert (cluster.task_type, cluster.task_id) == ("worker", 2)


def test_addresses_come_before_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=["c:3"]))
    cluster = find_cluster(Place(ADDRESSES, 0))
    assert len(cluster.cluster_spec().as_dict()["worker"]) == 2


def test_cluster_of_slurm_without_gpus(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[07-08]")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2,1")
    cluster = find_cluster(Place())
    assert cluster.cluster_spec().as_dict() == {
        "worker": ["n07:8192", "n07:8193", "n08:8192"]
    }
    assert (cluster.task_type, cluster.task_id) == ("worker", 2)


def test_jobs_of_slurm_on_one_node_do_not_share_a_port(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n1")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "8")
    ports = []
    for job in range(70_000, 70_300):
        monkeypatch.setenv("SLURM_JOB_ID", str(job))
        workers = find_cluster(Place()).cluster_spec().as_dict()["worker"]
        ports += [int(address.removeprefix("n1:")) for address in workers]
    assert len(set(ports)) == len(ports) == 8 * 300
    assert 1024 <= min(ports) and max(ports) < 32768


class Resolved:
    """What `is_chief` and `num_workers` ask a strategy for."""

    def __init__(self, kind, index, **jobs):
        self.cluster_resolver = tf.distribute.cluster_resolver
        self.cluster_resolver = self.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type=kind, task_id=index
        )


@pytest.mark.parametrize(
    "kind, index, jobs, expected",
    [
        ("worker", 0, {"worker": ["a:1", "b:1"]}, True),
        ("worker", 1, {"worker": ["a:1", "b:1"]}, False),
        ("chief", 0, {"chief": ["c:1"], "worker": ["a:1"]}, True),
        ("worker", 0, {"chief": ["c:1"], "worker": ["a:1"]}, False),
    ],
)
def test_one_process_of_all_is_the_chief(kind, index, jobs, expected):
    assert is_chief(Resolved(kind, index, **jobs)) is expected


@pytest.mark.parametrize(
    "place, message",
    [
        (Place(), "TF_CONFIG.*Slurm"),
        (Place("a.example", 0), "host:port.*'a.example'"),
        (Place("a:1,:2", 0), "host:port"),
        (Place("a:1,b:0", 0), "host:port"),
        (Place("a:1,b:70000", 0), "host:port"),
        (Place("a:1,", 0), "host:port"),
        (Place("a:1,a:1", 0), "different addresses"),
        (Place(ADDRESSES), r"`worker_index` must be in 0..1.*None"),
        (Place(ADDRESSES, 2), r"`worker_index` must be in 0..1.*=2"),
        (Place(ADDRESSES, -1), r"`worker_index` must be in 0..1.*=-1"),
    ],
)
def test_what_is_missing_is_said(place, message):
    with pytest.raises(ValueError, match=message):
        make_strategy("multi_worker", place)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        json.dumps({"cluster": {"worker": ["a:1"]}}),
        tf_config(worker=[]),
        tf_config(index=3, worker=["a:1"]),
        tf_config(worker=["a:1", "b"]),
        tf_config(worker=["a:1", "b:99999"]),
        tf_config(worker=["a:1", "a:1"]),
        tf_config(worker=["a:1"], chief=["a:1"]),
        tf_config(worker=["a:1", 7]),
        tf_config(worker="a:1"),
        tf_config(kind="ps", ps=["p:1"], worker=["a:1"]),
    ],
)
def test_tf_config_that_makes_no_sense_is_shown(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG must be of the form"):
        find_cluster(Place())


def test_slurm_that_does_not_say_who_trains(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(ValueError, match="with srun"):
        find_cluster(Place())


def test_workers_of_a_single_process_are_refused():
    with pytest.raises(ValueError, match="`workers` needs `strategy='multi"):
        make_strategy("mirrored", Place(ADDRESSES, 0))


@pytest.mark.parametrize(
    "error", [tf.errors.UnavailableError, tf.errors.AbortedError]
)
def test_a_lost_worker_is_named(monkeypatch, error):
    strategy = make_strategy("mirrored")
    # One process alone has none to lose.
    with pytest.raises(error), name_lost_workers(strategy, lambda: "at noon"):
        raise error(None, None, "Of something else")
    monkeypatch.setattr(strategies, "num_workers", lambda strategy: 2)
    with (
        pytest.raises(WorkerLostError, match=f"at noon .{error.__name__}.. St"),
        name_lost_workers(strategy, lambda: "at noon"),
    ):
        raise error(None, None, "Connection reset by peer")


def test_values_are_assigned_on_every_replica():

    strategy = make_strategy("mirrored")
    with strategy.scope():
        variable = tf.Variable(0.0)
    strategy.run(
        tf.function(lambda: assign_on_replicas([variable], [tf.constant(2.0)]))
    )
    copies = strategy.experimental_local_results(variable)
    assert [float(copy) for copy in copies] == [2.0, 2.0]
