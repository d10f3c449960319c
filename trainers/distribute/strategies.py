"""Where a model is trained: one device or several, on one machine or more."""

import contextlib
import dataclasses
import functools
import json
import os
import signal
from collections.abc import Callable

import tensorflow as tf

from keras_vit.tables import pick
from trainers.distribute.rendezvous import (
    WorkerLostError,
    is_address,
    limit,
    meet,
)
from trainers.paths import first_line

resolvers = tf.distribute.cluster_resolver
# How TensorFlow says that another process does not answer.
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)


@dataclasses.dataclass(frozen=True)
class Place:
    """This process among those that train together.

    Args:
        workers: Addresses "host:port,host:port" of all processes, the same
            line for each; None to read TF_CONFIG or what Slurm sets.
        worker_index: Number of this process in `workers`, from 0.
        tpu: Name or address of the TPU; None for the one of this machine.
        start_timeout: Seconds to wait for the other processes, and for the
            data service, at the start.
    """

    workers: str | None = None
    worker_index: int | None = None
    tpu: str | None = None
    start_timeout: float = 600.0


ALONE = Place()


def make_strategy(name: str, place: Place = ALONE) -> tf.distribute.Strategy:
    """Return a distribution strategy.

    Must come before any other work of TensorFlow, which would start the
    devices without the other processes.

    Args:
        name: A key of STRATEGIES.
        place: This process among others; for those strategies that have some.

    Raises:
        ValueError: If there is no such strategy, or what it needs is missing.
        WorkerLostError: If other processes do not come in time.
    """
    strategy = pick(STRATEGIES, name, "strategy")
    if name != "multi_worker" and place.workers:
        raise ValueError(
            "`workers` needs `strategy='multi_worker'`. "
            f"Received: strategy={name!r}, workers={place.workers!r}"
        )
    return strategy(place)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process is the one that writes files."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type in (None, "", "chief"):
        return True
    has_chief = "chief" in resolver.cluster_spec().jobs
    return resolver.task_id == 0 and not has_chief


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Return how many processes train together."""
    resolver = strategy.cluster_resolver
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    jobs = resolver.cluster_spec().as_dict()
    return len(jobs.get("worker", [])) + len(jobs.get("chief", []))


def wait_for_all(strategy: tf.distribute.Strategy):
    """Return when every process has come here."""
    if num_workers(strategy) > 1:
        ones = strategy.run(tf.function(lambda: tf.ones(())))
        strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)


@contextlib.contextmanager
def name_lost_workers(
    strategy: tf.distribute.Strategy, when: Callable[[], str]
):
    """Turn what TensorFlow says of a lost process into a WorkerLostError.

    Args:
        strategy: With one worker, errors pass as they are.
        when: Asked for words such as "after update 7".
    """
    try:
        yield
    except LOST as error:
        if num_workers(strategy) == 1:
            raise
        raise WorkerLostError(
            f"Another worker does not answer any more, {when()} "
            f"({type(error).__name__}). Start all of them again to go on from "
            "the last checkpoint."
        ) from error


def assign_on_replicas(variables: list[tf.Variable], values: list):
    """Assign, in replica context, values that are the same on every replica.

    Args:
        variables: Made inside the scope of the strategy.
        values: One tensor each.
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


def one_device(place):
    """Train on the first GPU, or on the CPU if there is none."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/{kind}:0")


@functools.cache  # A second one would use the keys of the sums of the first.
def mirrored(place):
    """Copy the model to every GPU of this machine, or every logical CPU."""
    devices = tf.config.list_logical_devices(
        "GPU"
    ) or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def multi_worker(place):
    """Copy the model to every GPU of several machines, one process each."""
    cluster = find_cluster(place)
    jobs = cluster.cluster_spec().as_dict()
    own = jobs[cluster.task_type][cluster.task_id]
    meet(sum(jobs.values(), []), own, place.start_timeout)
    heed = signal.getsignal(signal.SIGTERM)
    with limit(place.start_timeout):  # One may be lost on the way.
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=cluster
        )
    signal.signal(signal.SIGTERM, heed)  # TensorFlow has taken it.
    return strategy


def tpu(place):
    """Copy the model to every core of a TPU, or of a slice of several."""
    try:
        resolver = resolvers.TPUClusterResolver(tpu=place.tpu or "local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        # Of a machine without a TPU, all that an operation is told follows.
        reason = first_line(error).partition(" with these attrs")[0]
        raise ValueError(
            "`strategy='tpu'` found no TPU; `tpu` must be its name, its "
            "address or, on a TPU VM, be left out. "
            f"Received: tpu={place.tpu!r} ({reason})"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


def find_cluster(place: Place) -> resolvers.ClusterResolver:
    """Return who else trains: of `workers`, of TF_CONFIG or of Slurm.

    Raises:
        ValueError: If none of them is there, or they are not complete.
    """
    if place.workers:
        return _from_addresses(place)
    if os.environ.get("TF_CONFIG"):
        return _from_tf_config(os.environ["TF_CONFIG"])
    if "SLURM_PROCID" in os.environ:
        return _from_slurm()
    raise ValueError(
        "`strategy='multi_worker'` must know the other processes: give "
        "`workers` and `worker_index`, set TF_CONFIG, or start it with Slurm's "
        "srun. None of them was found."
    )


def _from_addresses(place):
    addresses = [part.strip() for part in place.workers.split(",")]
    if not all(is_address(part) for part in addresses):
        raise ValueError(
            "`workers` must be 'host:port,host:port'. "
            f"Received: workers={place.workers!r}"
        )
    if len(set(addresses)) < len(addresses):
        raise ValueError(
            "`workers` must be different addresses. "
            f"Received: workers={place.workers!r}"
        )
    index = place.worker_index
    if index is None or not 0 <= index < len(addresses):
        raise ValueError(
            f"`worker_index` must be in 0..{len(addresses) - 1}, the number of "
            f"this process in `workers`. Received: worker_index={index}"
        )
    return resolvers.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}),
        task_type="worker",
        task_id=index,
        rpc_layer="grpc",
    )


def _from_tf_config(text):
    try:
        config = json.loads(text)
        workers = config["cluster"].get("worker", [])
        kind, index = config["task"]["type"], int(config["task"]["index"])
        if kind not in ("chief", "worker"):
            raise ValueError(f"no task of type {kind!r} trains here")
        if not 0 <= index < len(config["cluster"][kind]):
            raise ValueError(f"there is no {kind} {index}")
        if not workers:
            raise ValueError("there are no workers")
        everyone = [*config["cluster"].get("chief", []), *workers]
        for address in everyone:
            if not is_address(address):
                raise ValueError(f"{address!r} is not host:port")
        if len(set(everyone)) < len(everyone):
            raise ValueError("an address is there twice")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            'TF_CONFIG must be of the form {"cluster": {"worker": '
            '["host:port", ...]}, "task": {"type": "worker", "index": 0}}. '
            f"Received: TF_CONFIG={text!r} ({type(error).__name__}: {error})"
        ) from None
    return resolvers.TFConfigClusterResolver()


def _from_slurm():
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    # On machines without a GPU the resolver would divide by their number.
    places = {} if has_gpus else {"gpus_per_node": 1024, "gpus_per_task": 1}
    try:
        resolver = resolvers.SlurmClusterResolver(
            port_base=_slurm_port(), auto_set_gpu=has_gpus, **places
        )
        resolver.cluster_spec()  # Finds out which task this is.
    except (RuntimeError, KeyError, ValueError, OSError) as error:
        raise ValueError(
            "Slurm did not say who trains; start every process with srun "
            "inside the job, or give `workers` and `worker_index`. "
            f"Received: {type(error).__name__}: {error}"
        ) from None
    return resolver


def _slurm_port():
    """Return a first port that jobs side by side on a node do not share.

    16 for each of 1024 jobs, all below 32768, where Linux begins to give ports
    to whoever asks.
    """
    return 8192 + 16 * (int(os.environ.get("SLURM_JOB_ID", 0)) % 1024)


STRATEGIES = {
    "one_device": one_device,
    "mirrored": mirrored,
    "multi_worker": multi_worker,
    "tpu": tpu,
}
