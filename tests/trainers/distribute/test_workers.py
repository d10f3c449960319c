"""The chief, the comparison of workers, and the errors of lost workers."""

import numpy as np
import pytest
import tensorflow as tf

from trainers.distribute import workers
from trainers.distribute.cluster import WorkerLostError
from trainers.distribute.strategies import make_strategy
from trainers.distribute.workers import (
    describe_differences,
    gather_rows,
    is_chief,
    name_lost_workers,
    num_processors,
)


class Resolved:
    """The part of a strategy that `is_chief` and `num_workers` read."""

    def __init__(self, kind, index, **jobs):
        self.cluster_resolver = tf.distribute.cluster_resolver
        self.cluster_resolver = self.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type=kind, task_id=index
        )


@pytest.mark.parametrize(
    "kind, index, jobs, expected",
    [
        ("worker", 1, {"worker": ["a:1", "b:1"]}, False),
        ("chief", 0, {"chief": ["c:1"], "worker": ["a:1"]}, True),
        ("worker", 0, {"chief": ["c:1"], "worker": ["a:1"]}, False),
    ],
)
def test_one_process_of_all_is_the_chief(kind, index, jobs, expected):
    assert is_chief(Resolved(kind, index, **jobs)) is expected


@pytest.mark.parametrize(
    "error", [tf.errors.UnavailableError, tf.errors.AbortedError]
)
def test_a_lost_worker_is_named(monkeypatch, error):
    strategy = make_strategy("mirrored")
    # One process alone has none to lose.
    with pytest.raises(error), name_lost_workers(strategy, lambda: "at noon"):
        raise error(None, None, "Of something else")
    monkeypatch.setattr(workers, "num_workers", lambda strategy: 2)
    with (
        pytest.raises(WorkerLostError, match=f"at noon .{error.__name__}.. St"),
        name_lost_workers(strategy, lambda: "at noon"),
    ):
        raise error(None, None, "Connection reset by peer")


class OneOfTwo(tf.distribute.MultiWorkerMirroredStrategy):
    """The first of two processes; the other one sends the row [5, 6]."""

    cluster_resolver = Resolved("worker", 0, worker=["a:1", "b:1"])
    cluster_resolver = cluster_resolver.cluster_resolver
    num_replicas_in_sync = 2

    def __init__(self):
        self.sums = []

    def run(self, function):
        return function()

    def reduce(self, operation, value, axis):
        self.sums.append(value.shape.rank)
        if len(self.sums) > 1:
            raise tf.errors.UnavailableError(None, None, "Socket closed")
        return value + [[0, 0], [5, 6]]


def test_a_process_may_end_once_the_others_have_its_row():
    """It may find in the table that they cannot train together, and end."""
    strategy = OneOfTwo()
    table = gather_rows(strategy, np.array([3, 4], "int32"))
    np.testing.assert_array_equal(table, [[3, 4], [5, 6]])
    assert strategy.sums == [2, 0]  # After the table, one to wait for all.


def test_workers_that_differ_are_named_with_what_differs():
    table = np.array([[1, 2, 3], [1, 2, 3], [1, 5, 6]])
    addresses, names = ["a:1", "b:1", "c:1"], ["model", "seed", "loss"]
    describe_differences(table[:2], addresses[:2], "recipe", names)
    with pytest.raises(ValueError) as caught:
        describe_differences(table, addresses, "recipe", names)
    assert str(caught.value).startswith("All workers must have the same recipe")
    assert str(caught.value).endswith(
        "Compared with worker 0 (a:1): worker 2 (c:1) differs in seed, loss"
    )


class Devices:
    """The part of a strategy that `num_processors` reads."""

    def __init__(self, *devices, replicas):
        self.extended = self
        self.worker_devices = devices
        self.num_replicas_in_sync = replicas


@pytest.mark.parametrize(
    "strategy, count",
    [
        (Devices("/device:CPU:0", "/device:CPU:1", replicas=2), 1),
        (Devices("/GPU:0", "/GPU:1", replicas=2), 2),
        (Devices("/job:worker/replica:0/task:0/device:TPU:0", replicas=8), 8),
    ],
    ids=["logical CPUs", "GPUs", "TPU"],
)
def test_processors_of_a_strategy(strategy, count):
    assert num_processors(strategy) == count
