"""A function that the workers of a Ray cluster compute, in order."""

import collections
import contextlib
import dataclasses
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

from keras_vit.errors import missing_packages

LOCAL = "local"
MOST_LOSSES = 3  # Of workers in a row for one item, or at their start.
AHEAD = 4  # Items of each worker beyond the first that is not done yet.


@dataclasses.dataclass(frozen=True)
class RayCluster:
    """Computes a function in processes of Ray, on one machine or many.

    Work that was lost with a worker is given to another one. All machines need
    this package and the same files at the same paths.

    Args:
        address: Of a running cluster: `auto` on one of its machines, or
            HOST:PORT. `local` starts workers on this machine.
        num_workers: How many processes; they share the processors. 0 for one
            on each GPU, or on each machine if none has one.
        prepare: Called in each process before the work begins.
    """

    address: str
    num_workers: int = 0
    prepare: Callable[[], None] | None = None

    def map(self, make: Callable[[], Callable], items: Iterable) -> Iterator:
        """Yield `make()(item)` of each item, in their order.

        `make` is called once in each worker. Ray transports it, the items and
        what is returned.

        Raises:
            ModuleNotFoundError: If Ray is not installed.
            ValueError: If there is no such cluster.
            RuntimeError: If workers are lost again and again.
            Exception: What a worker raises.
        """
        try:
            import ray
        except ModuleNotFoundError:
            raise missing_packages("--ray", ["ray"]) from None
        import keras  # Not in workers, which need not compute with it.

        items = [*items]
        if not items:
            return
        with connected(ray, self.address):
            nodes = [x["Resources"] for x in ray.nodes() if x["Alive"]]
            num_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
            num_workers = self.num_workers or num_gpus or len(nodes)
            num_cpus = share_processors(
                [int(node.get("CPU", 0)) for node in nodes], num_workers
            )
            variables = {"KERAS_BACKEND": keras.backend.backend()}
            if not num_gpus:  # More threads would take time from the others.
                variables["TF_NUM_INTRAOP_THREADS"] = str(num_cpus)
            actor = ray.remote(_Worker).options(
                num_cpus=num_cpus,
                num_gpus=min(num_gpus, 1),
                runtime_env={"env_vars": variables},
            )
            setup = ray.put((os.getcwd(), self.prepare, make))

            def start():
                worker = actor.remote()
                return worker, worker.begin.remote(setup)

            yield from _compute(ray, start, num_workers, items)


def share_processors(num_cpus: list[int], num_workers: int) -> int:
    """Return how many processors each worker gets, at least one.

    Args:
        num_cpus: Those of each machine; a worker runs on one machine.
        num_workers: Number of workers.

    Example:
        >>> share_processors([8, 4], 3)
        4
    """
    for share in range(max(num_cpus, default=1), 1, -1):
        if sum(number // share for number in num_cpus) >= num_workers:
            return share
    return 1


@contextlib.contextmanager
def connected(ray: ModuleType, address: str):
    """Connect to Ray, or start it, unless the program has done so.

    Raises:
        ValueError: If there is no such cluster.
    """
    if ray.is_initialized():
        yield
        return
    # It reports nothing to its makers unless somebody asks for it, and its
    # workers have the priority of this process.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        if address not in (LOCAL, "auto"):  # Ray would try it for minutes.
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(
            address,
            include_dashboard=False if address == LOCAL else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            "`ray` must be local, auto on a machine of a cluster, or its "
            "HOST:PORT, and Ray must be able to start there. "
            f"Received: ray={address!r} ({error})"
        ) from None
    try:
        for number, handler in zip(numbers, handlers):  # Ray has replaced it.
            signal.signal(number, handler)
        yield
    finally:
        ray.shutdown()


def _compute(ray, start, num_workers, items):
    """Yield the results of items; workers that are lost are replaced.

    Those that are lost with an item three times in a row end the work.
    """
    rest = enumerate(items)
    again = collections.deque()  # What lost workers had.
    busy = {}  # By what Ray promises, the worker and its index and item.
    losses = collections.Counter()  # By index; None is the start of a worker.
    waiting = []  # Workers without work; some are too far ahead.
    results, position = {}, 0

    def add_worker():
        worker, begun = start()
        busy[begun] = worker, None, None

    for _ in range(min(num_workers, len(items))):
        add_worker()
    while position < len(items):
        [done], _ = ray.wait([*busy], num_returns=1)
        worker, index, item = busy.pop(done)
        try:
            result = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            losses[index] += 1
            if losses[index] >= MOST_LOSSES:
                what = "at its start" if index is None else f"with {item}"
                raise RuntimeError(
                    f"A worker was lost {MOST_LOSSES} times {what}: {error}"
                ) from None
            if index is not None:
                again.append((index, item))
            add_worker()
        else:
            losses[None] = 0
            waiting.append(worker)
            if index is not None:
                results[index] = result
        while position in results:
            yield results.pop(position)
            position += 1
        while waiting and (again or len(results) < AHEAD * num_workers):
            task = again.popleft() if again else next(rest, None)
            if task is None:
                break
            worker = waiting.pop()
            busy[worker.compute.remote(task[1])] = worker, *task


class _Worker:
    """Runs in a process of Ray."""

    def begin(self, setup):
        directory, prepare, make = setup
        os.chdir(directory)
        if prepare:
            prepare()
        self._function = make()

    def compute(self, item):
        return self._function(item)
