"""The engine of TensorFlow: its strategies, processes and sums."""

import contextlib
import types

import numpy as np
import pytest
import tensorflow as tf

from trainers.commands import explain
from trainers.engine import tensorflow as engines
from trainers.engine.cluster import WorkerConfig
from trainers.engine.engine import Engine, describe_differences
from trainers.engine.rendezvous import WorkerLostError
from trainers.engine.tensorflow import (
    TensorFlowEngine,
    make_engine,
    sum_gradients,
)


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


def test_full_memory_is_no_lost_worker():
    """JAX reports both by one type of error."""
    engine = Engine()
    engine.lost, engine.addresses = (RuntimeError,), ("a:1", "b:1")
    with pytest.raises(MemoryError, match="allocating 8 bytes") as caught:
        with engine.name_lost_workers(lambda: "at noon"):
            raise RuntimeError("RESOURCE_EXHAUSTED: allocating 8 bytes.\nMore")
    assert "not enough memory" in explain(caught.value)


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


def draw_gradients(*shape):
    """Return numbers of very different sizes."""
    draws = np.random.default_rng(0)
    sizes = 10.0 ** draws.integers(-6, 3, shape)
    return (draws.normal(size=shape) * sizes).astype("float32")


# Those of the two replicas.
KERNELS, BIASES = draw_gradients(2, 300, 40), draw_gradients(2, 500)


def sums(strategy, dtype):
    """Return the sums of the gradients on the first replica."""
    strategy = make_engine(strategy).strategy

    @tf.function
    def compute():
        def on_replica():
            replica = tf.distribute.get_replica_context()
            index = replica.replica_id_in_sync_group
            mine = [tf.constant(KERNELS)[index], tf.constant(BIASES)[index]]
            return sum_gradients(mine, dtype)

        return strategy.run(on_replica)

    got = compute()
    return [strategy.experimental_local_results(x)[0].numpy() for x in got]


def test_sums_in_float32_are_exact_to_the_last_rounding():
    kernel, bias = sums("mirrored", "float32")
    np.testing.assert_array_equal(kernel, KERNELS.sum(0))
    np.testing.assert_array_equal(bias, BIASES.sum(0))


def test_only_kernels_are_rounded_and_no_more_than_documented():
    kernel, bias = sums("mirrored", "bfloat16")
    assert kernel.dtype == bias.dtype == np.float32
    np.testing.assert_array_equal(bias, BIASES.sum(0))
    error = np.abs(kernel - KERNELS.astype("float64").sum(0))
    bound = 2 * 2.0**-8 * np.abs(KERNELS).astype("float64").sum(0)
    assert (error <= bound * (1 + 2.0**-7)).all()
    assert error.max() > 0  # They were sent in bfloat16.
