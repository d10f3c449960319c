"""STRATEGIES: one device or several, on one machine or more."""

import dataclasses
import functools
import signal
from collections.abc import Callable

import tensorflow as tf

from keras_vit.errors import first_line
from keras_vit.tables import pick
from trainers.distribute.cluster import (
    ALONE,
    WorkerConfig,
    find_cluster,
    kill_after,
    wait_for_workers,
)

# Gradients are summed in about as many packs, of at least so many bytes. A
# pack starts when the backward pass has computed it, so only the last one has
# to be waited for; below 1 MB a network waits for latency.
PACKS, LEAST_BYTES = 16, 2**20
SUM_DTYPES = ("float32", "bfloat16")


def as_dense(gradients: list, weights: list) -> list:
    """Return gradients as tensors of known shape.

    Those of weights whose rows are taken by index, such as relative positions,
    come as `tf.IndexedSlices`.

    Args:
        gradients: The gradient of each weight.
        weights: The values of the weights.
    """
    return [
        tf.ensure_shape(tf.convert_to_tensor(gradient), weight.shape)
        if isinstance(gradient, tf.IndexedSlices)
        else gradient
        for gradient, weight in zip(gradients, weights)
    ]


def sum_gradients(gradients: list, dtype: str = "float32") -> list:
    """Return the sums of gradients over all replicas, inside `strategy.run`.

    The gradients of vectors, those of biases and norms, are always summed in
    their own dtype.

    Args:
        gradients: Those of this replica, in the order of the layers. The last
            ones, which the backward pass computes first, are sent first.
        dtype: One of SUM_DTYPES, in which the others are sent and added. Of N
            replicas in bfloat16, a sum is wrong by at most about N * 2^-8 of
            the sum of the absolute values.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return gradients
    sent = [tf.cast(x, dtype) if x.shape.rank > 1 else x for x in gradients]
    sums = [None] * len(sent)
    # A pack has one dtype. The workers must have one order of the packs.
    for kind in dict.fromkeys(x.dtype for x in sent):
        places = [i for i, x in enumerate(sent) if x.dtype == kind]
        for i, total in zip(places, _sum_packs([sent[i] for i in places])):
            sums[i] = tf.cast(total, gradients[i].dtype)
    return sums


def _sum_packs(gradients):
    size = sum(x.shape.num_elements() * x.dtype.size for x in gradients)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=max(size // PACKS, LEAST_BYTES)
    )
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients, options)


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
