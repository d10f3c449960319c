"""STRATEGIES: one device or several, on one machine or more."""

import dataclasses
import functools
import signal
from collections.abc import Callable

import tensorflow as tf

from keras_vit.errors import first_line
from keras_vit.tables import pick
from trainers.distribute.cluster import ALONE, WorkerConfig, find_cluster
from trainers.distribute.rendezvous import kill_after, wait_for_workers


def make_strategy(
    name: str, config: WorkerConfig = ALONE
) -> tf.distribute.Strategy:
    """Return a distribution strategy.

    Call this before any other TensorFlow operation, which would initialise the
    devices without the other processes.

    Args:
        name: A key of STRATEGIES.
        config: How the other processes are found, if the strategy has several.

    Raises:
        ValueError: If there is no such strategy, or one of its requirements is
            missing.
        WorkerLostError: If other processes do not start in time.
    """
    row = pick(STRATEGIES, name, "strategy")
    if config.workers and not row.takes_workers:
        fitting = [name for name, r in STRATEGIES.items() if r.takes_workers]
        raise ValueError(
            f"`workers` needs `strategy={' or '.join(map(repr, fitting))}`. "
            f"Received: strategy={name!r}, workers={config.workers!r}"
        )
    return row.make(config)


@dataclasses.dataclass(frozen=True)
class StrategyRow:
    """A row of STRATEGIES.

    Args:
        make: Maps a WorkerConfig to the strategy.
        takes_workers: Whether it uses the argument `workers`.
    """

    make: Callable[[WorkerConfig], tf.distribute.Strategy]
    takes_workers: bool = False


def assign_on_replicas(variables: list[tf.Variable], values: list):
    """Assign, in replica context, values that are the same on every replica.

    Args:
        variables: Variables that were created in the scope of the strategy.
        values: The value of each variable, as a tensor.
    """

    def assign(strategy, *values):
        for variable, value in zip(variables, values):
            strategy.extended.update(
                variable,
                lambda variable, value: variable.assign(value),
                args=(value,),
                group=False,
            )

    tf.distribute.get_replica_context().merge_call(assign, args=tuple(values))


def one_device(config):
    """Train on the first GPU, or on the CPU if there is none."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/{kind}:0")


@functools.cache  # A second one would reuse the collective keys of the first.
def mirrored(config):
    """Copy the model to every GPU of this machine, or every logical CPU."""
    devices = tf.config.list_logical_devices(
        "GPU"
    ) or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


@functools.cache  # The processes meet only once.
def multi_worker(config):
    """Copy the model to every GPU of several machines, one process each."""
    cluster = find_cluster(config)
    jobs = cluster.cluster_spec().as_dict()
    own = jobs[cluster.task_type][cluster.task_id]
    wait_for_workers(sum(jobs.values(), []), own, config.start_timeout)
    handler = signal.getsignal(signal.SIGTERM)
    # A worker may be lost while TensorFlow connects them.
    with kill_after(config.start_timeout):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=cluster
        )
    signal.signal(signal.SIGTERM, handler)  # TensorFlow replaced the handler.
    return strategy


@functools.cache  # To initialise a TPU again would clear its memory.
def tpu(config):
    """Copy the model to every core of a TPU, or of a slice of several."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=config.tpu or "local"
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        # Without a TPU, the message continues with irrelevant attributes.
        reason = first_line(error).partition(" with these attrs")[0]
        raise ValueError(
            "`strategy='tpu'` found no TPU; `tpu` must be its name, its "
            "address or, on a TPU VM, be left out. "
            f"Received: tpu={config.tpu!r} ({reason})"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


STRATEGIES = {
    "one_device": StrategyRow(one_device),
    "mirrored": StrategyRow(mirrored),
    "multi_worker": StrategyRow(multi_worker, takes_workers=True),
    "tpu": StrategyRow(tpu),
}
