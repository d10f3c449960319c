"""The processes of an engine: the writer, their comparison, and losses."""

import numpy as np
import pytest
import tensorflow as tf

from trainers.engine.engine import describe_differences
from trainers.engine.rendezvous import WorkerLostError
from trainers.engine.strategies import make_engine
from trainers.engine.tensorflow import TensorFlowEngine


class OneOfSeveral(tf.distribute.MultiWorkerMirroredStrategy):
    """One of several processes; another one sends the row [5, 6]."""

    def __init__(self, kind, index, devices=("/device:CPU:0",), **jobs):
        resolvers = tf.distribute.cluster_resolver
        self.resolver = resolvers.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type=kind, task_id=index
        )
        self.jobs = jobs
        self.worker_devices = devices
        self.sums = []

    @property
    def cluster_resolver(self):
        return self.resolver

    @property
    def extended(self):
        return self

    @property
    def num_replicas_in_sync(self):
        return sum(map(len, self.jobs.values())) * len(self.worker_devices)

    def run(self, function):
        return function()

    def reduce(self, operation, value, axis):
        self.sums.append(value.shape.rank)
        if len(self.sums) > 1:
            raise tf.errors.UnavailableError(None, None, "Socket closed")
        return value + [[0, 0], [5, 6]]


@pytest.mark.parametrize(
    "kind, index, jobs, expected",
    [
        ("worker", 1, {"worker": ["a:1", "b:1"]}, False),
        ("chief", 0, {"chief": ["c:1"], "worker": ["a:1"]}, True),
        ("worker", 0, {"chief": ["c:1"], "worker": ["a:1"]}, False),
    ],
)
def test_one_process_of_all_writes(kind, index, jobs, expected):
    engine = TensorFlowEngine(OneOfSeveral(kind, index, **jobs))
    assert engine.is_writer is expected
    assert engine.num_processes == sum(map(len, jobs.values()))


@pytest.mark.parametrize(
    "error", [tf.errors.UnavailableError, tf.errors.AbortedError]
)
def test_a_lost_worker_is_named(error):
    # One process alone has none to lose.
    alone = make_engine("mirrored")
    with pytest.raises(error), alone.name_lost_workers(lambda: "at noon"):
        raise error(None, None, "Of something else")
    engine = TensorFlowEngine(OneOfSeveral("worker", 0, worker=["a:1", "b:1"]))
    with (
        pytest.raises(WorkerLostError, match=f"at noon .{error.__name__}.. St"),
        engine.name_lost_workers(lambda: "at noon"),
    ):
        raise error(None, None, "Connection reset by peer")


def test_a_process_may_end_once_the_others_have_its_row():
    """It may find in the table that they cannot train together, and end."""
    strategy = OneOfSeveral("worker", 0, worker=["a:1", "b:1"])
    table = TensorFlowEngine(strategy).gather(np.array([3, 4], "int32"))
    np.testing.assert_array_equal(table, [[3, 4], [5, 6]])
    assert strategy.sums == [2, 0]  # After the table, one to wait for all.


def test_fractions_of_a_process_are_not_rounded():
    """Workers agree on the seconds of an update, often less than 1."""
    strategy = OneOfSeveral("worker", 0, worker=["a:1", "b:1"])
    table = TensorFlowEngine(strategy).gather(np.array([0.25, 3], "float32"))
    np.testing.assert_array_equal(table, [[0.25, 3], [5, 6]])
    assert table.dtype == "float32"


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
    """The part of a strategy that tells its processors."""

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
    assert TensorFlowEngine(strategy).num_processors == count
