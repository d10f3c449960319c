"""The processes of a strategy: their number, equality and failures."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from trainers.distribute.cluster import WorkerLostError

# Largest number of differing values that an error names for each worker.
MOST_NAMES = 5
# Errors by which TensorFlow reports that another process does not respond.
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process is the one that writes files."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type in (None, "", "chief"):
        return True
    has_chief = "chief" in resolver.cluster_spec().jobs
    return resolver.task_id == 0 and not has_chief


def worker_addresses(strategy: tf.distribute.Strategy) -> list[str]:
    """Return the addresses of all processes, the chief first; [] for one.

    A process has the index of its address in this list.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return [*jobs.get("chief", []), *jobs.get("worker", [])]


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Return the number of processes that train together."""
    return len(worker_addresses(strategy)) or 1


def num_processors(strategy: tf.distribute.Strategy) -> int:
    """Return the number of processors that the replicas run on.

    The logical CPUs of a machine together count as one processor; each GPU and
    each core of a TPU counts as one.
    """
    devices = strategy.extended.worker_devices  # Those of this process.
    if all("CPU:" in device.upper() for device in devices):
        return num_workers(strategy)
    return strategy.num_replicas_in_sync


def wait_for_all(strategy: tf.distribute.Strategy):
    """Wait until every process has called this function."""
    if num_workers(strategy) > 1:
        ones = strategy.run(tf.function(lambda: tf.ones(())))
        strategy.reduce(tf.distribute.ReduceOp.SUM, ones, axis=None)


def part_from_all(strategy: tf.distribute.Strategy):
    """Wait until every process has called this function, or one has ended.

    All call it before they end. Otherwise, a process could end while another
    still waits for its part of the last sum, and would be taken for lost.
    """
    with contextlib.suppress(tf.errors.OpError):
        wait_for_all(strategy)


def check_agreement(
    strategy: tf.distribute.Strategy,
    subject: str,
    values: Iterable[tuple[str, bytes]],
):
    """Raise a ValueError unless every process has the same values.

    Every process must call this function, with the same names.

    Args:
        strategy: The strategy; with one process, nothing is compared.
        subject: Name of the compared object, such as "recipe".
        values: Names and contents of the values.

    Raises:
        ValueError: On every process. The message names the processes that
            differ from the first one, and the values.
    """
    addresses = worker_addresses(strategy)
    if len(addresses) < 2:
        return
    # 24 bits of a checksum, so that a sum over replicas fits into int32.
    digests = {
        name: int.from_bytes(hashlib.sha256(value).digest()[:3])
        for name, value in values
    }
    table = gather_rows(strategy, np.array([*digests.values()], "int32"))
    describe_differences(table, addresses, subject, list(digests))


def gather_rows(
    strategy: tf.distribute.Strategy, row: np.ndarray
) -> np.ndarray:
    """Return a row of numbers of each process, the chief's first.

    Every process must call this function, with a row of the same size.

    Args:
        strategy: The strategy.
        row: The numbers of this process. Times the replicas of a process, they
            must fit into their type.

    Shapes:
        row: (N,). returns: (workers, N).
    """
    addresses = worker_addresses(strategy)
    if len(addresses) < 2:
        return row[None]
    resolver = strategy.cluster_resolver
    job = resolver.cluster_spec().as_dict()[resolver.task_type]
    index = addresses.index(job[resolver.task_id])
    table = np.zeros((len(addresses), len(row)), row.dtype)
    table[index] = row
    per_replica = strategy.run(lambda: tf.constant(table))
    total = strategy.reduce(
        tf.distribute.ReduceOp.SUM, per_replica, axis=None
    ).numpy()
    # Any of them could end because of this table. Until all have it, it waits.
    part_from_all(strategy)
    return total // (strategy.num_replicas_in_sync // len(addresses))


def describe_differences(
    table: np.ndarray, addresses: list[str], subject: str, names: list[str]
):
    """Raise a ValueError that names rows of a table that differ from the first.

    Shapes:
        table: (workers, values), checksums.
    """
    faults = []
    for index, row in enumerate(table):
        different = [names[i] for i in np.flatnonzero(row != table[0])]
        if different:
            rest = len(different) - MOST_NAMES
            more = f" and {rest} more" if rest > 0 else ""
            faults.append(
                f"worker {index} ({addresses[index]}) differs in "
                + ", ".join(different[:MOST_NAMES])
                + more
            )
    if faults:
        raise ValueError(
            f"All workers must have the same {subject}. Start them with the "
            "same flags and the same files. Compared with worker 0 "
            f"({addresses[0]}): {'; '.join(faults)}"
        )


@contextlib.contextmanager
def name_lost_workers(
    strategy: tf.distribute.Strategy, when: Callable[[], str]
):
    """Turn TensorFlow's errors about a lost process into a WorkerLostError.

    Args:
        strategy: The strategy; with one worker, errors pass unchanged.
        when: Returns a description of the time, such as "after update 7".
    """
    try:
        yield
    except LOST as error:
        if num_workers(strategy) == 1:
            raise
        raise WorkerLostError(
            f"Another worker no longer responds, {when()} "
            f"({type(error).__name__}). Start all of them again to go on from "
            "the last checkpoint."
        ) from error
