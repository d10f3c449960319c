"""Engine: the devices and processes of a training, behind one interface.

The trainer knows no backend. What differs between TensorFlow and JAX is in
`trainers.engine.tensorflow` and `trainers.engine.jax`, which implement the
methods of `Engine`.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.errors import first_line, is_out_of_memory
from keras_vit.tables import list_first
from trainers.engine.rendezvous import WorkerLostError, find_lost, is_address

SECONDS_TO_LOOK = 1.0  # For lost workers.


class Share(NamedTuple):
    """The images of each batch that a process reads, and in what pieces.

    Args:
        num_replicas: Into how many elements of the data set a batch is cut,
            over all processes: the replicas on TensorFlow, the processes on
            JAX, where an element is the whole share of a process.
        worker: Number of this process.
        num_workers: Number of processes.
    """

    num_replicas: int = 1
    worker: int = 0
    num_workers: int = 1


class Engine:
    """The devices and processes that train a model.

    Attributes:
        num_replicas: Number of devices, or groups of them, among which each
            batch is divided; its size must be a multiple of it.
        num_processors: Number of processors that compute them. The logical
            CPUs of a machine count as one.
        index: Number of this process, from 0.
        addresses: The names of all processes; () if there is one.
        devices: The names of the devices of this process.
        saves_together: Whether all processes write checkpoints and enter
            `whole`, because each may hold a part of the weights alone.
        lost: Types of errors by which the backend reports that another
            process does not respond.
    """

    num_replicas: int
    num_processors: int
    index: int = 0
    addresses: tuple[str, ...] = ()
    devices: tuple[str, ...]
    saves_together: bool = False
    lost: tuple[type[Exception], ...] = ()

    def scope(self) -> contextlib.AbstractContextManager:
        """Return the scope in which models and optimizers are made."""
        raise NotImplementedError

    def reading(self) -> contextlib.AbstractContextManager:
        """Return the scope in which models are read from files and changed.

        Call `place` with such a model after it.
        """
        return self.scope()

    def place(self, model: keras.Model):
        """Put the variables of a model that was read on the devices."""

    def batches(self, make: Callable[[Share], Any]) -> Iterable:
        """Return the batches of `make` on the devices, anew for each `iter`.

        Args:
            make: Maps the share of this process to a `tf.data.Dataset`.
        """
        raise NotImplementedError

    def compile(self, update) -> Any:
        """Return an update that runs on the devices.

        It has two methods. `train(iterator, count, first)` makes the updates
        number `first`, `first + 1` and so on, counted from 0 at the start of
        the run. It returns how many count, the sums of loss, hits and weights
        (3,) and the seconds spent waiting for input. After a loss that is not
        finite none counts, but an engine may have made the rest of the call.
        `measure(iterator, count)` returns the sums over batches of
        `Update.measure`.

        Args:
            update: See `trainers.engine.update.Update`.
        """
        raise NotImplementedError

    def state(self, model, optimizer, loss_scale, numbers: dict) -> Any:
        """Return what writes and reads the state of a training.

        `write(path)` writes it to files that begin with `path`; the last one
        is `path` with the ending `.index`. If the engine `saves_together`, all
        processes call it, and the writer writes the index afterwards, by
        `complete(path)`. `read(path)` reads it on all processes, and raises
        an error if a file is damaged.

        Args:
            model: The model.
            optimizer: Its optimizer.
            loss_scale: Its loss scale; None for none.
            numbers: Arrays by name, on the host; `read` replaces them.
        """
        raise NotImplementedError

    def gather(self, row: np.ndarray) -> np.ndarray:
        """Return a row of numbers of each process; all must call this.

        Shapes:
            row: (N,). returns: (processes, N).
        """
        raise NotImplementedError

    def wait_for_all(self):
        """Wait until every process has called this method."""
        raise NotImplementedError

    def memory_limits(self) -> list[int]:
        """Return the bytes of each accelerator of this process."""
        raise NotImplementedError

    @property
    def num_processes(self) -> int:
        """Number of processes that train together."""
        return len(self.addresses) or 1

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files and reports; only one does."""
        return self.index == 0

    def part_from_all(self):
        """Wait until every process has called this method, or one has ended.

        All call it before they end. Otherwise, a process could end while
        another still waits for its part of the last sum, and would be taken
        for lost.
        """
        with contextlib.suppress(*self.lost):
            self.wait_for_all()

    def agree(self, value: float) -> float:
        """Return the mean of a value over all processes."""
        return float(self.gather(np.array([value], "float32")).mean())

    def is_common(self, number: int) -> bool:
        """Return whether a number is the same for all processes."""
        numbers = self.gather(np.array([number]))
        return bool((numbers == number).all())

    def check_agreement(
        self, subject: str, values: Iterable[tuple[str, bytes]]
    ):
        """Raise a ValueError unless every process has the same values.

        Every process must call this method, with the same names.

        Args:
            subject: Name of the compared object, such as "recipe".
            values: Names and contents of the values.

        Raises:
            ValueError: On every process. The message names the processes that
                differ from the first one, and the values.
        """
        if self.num_processes == 1:
            return
        # 24 bits of a checksum, so that a sum over replicas fits into int32.
        digests = {
            name: int.from_bytes(hashlib.sha256(value).digest()[:3])
            for name, value in values
        }
        table = self.gather(np.array([*digests.values()], "int32"))
        try:
            describe_differences(table, self.addresses, subject, list(digests))
        except ValueError:
            self.part_from_all()
            raise

    @contextlib.contextmanager
    def name_lost_workers(self, when: Callable[[], str]) -> Iterator[None]:
        """Turn errors about a lost process into a WorkerLostError.

        Those about full memory, which look like them, become a MemoryError.

        Args:
            when: Returns a description of the time, such as "after update 7".
        """
        try:
            yield
        except self.lost as error:
            # JAX reports full memory and a lost process by one type.
            if is_out_of_memory(error):
                raise MemoryError(first_line(error)) from error
            if self.num_processes == 1:
                raise
            lost, reason = self.find_lost(), type(error).__name__
            raise self.explain_loss(lost, when(), reason) from error

    def find_lost(self) -> list[str]:
        """Return the names of the processes that do not listen any more."""
        others = [a for i, a in enumerate(self.addresses) if i != self.index]
        lost = find_lost([a for a in others if is_address(a)])
        # The others must find this one listening while they look.
        time.sleep(SECONDS_TO_LOOK)
        return [f"worker {self.addresses.index(a)} ({a})" for a in lost]

    def explain_loss(self, lost: list[str], when: str, reason: str):
        """Return the WorkerLostError that names lost processes.

        Args:
            lost: Their names; empty if they are not known.
            when: A description of the time.
            reason: What showed that one is lost.
        """
        names = f": {', '.join(lost)}" if lost else ""
        return WorkerLostError(
            f"Another worker no longer responds{names}, {when} ({reason}). "
            "Start all of them again to go on from the last checkpoint."
        )

    @contextlib.contextmanager
    def whole(self, model, weights: list | None = None) -> Iterator[None]:
        """Within it, the writer can save and draw the model.

        All processes must enter it, if the engine `saves_together`.

        Args:
            model: The model.
            weights: Values to use in place of the trainable weights; None for
                the weights.
        """
        variables = model.trainable_variables if weights else []
        before = [variable.numpy() for variable in variables]
        for variable, value in zip(variables, weights or ()):
            variable.assign(value)
        try:
            yield
        finally:
            for variable, value in zip(variables, before):
                variable.assign(value)

    def content_of(self, variable) -> bytes:
        """Return what must be equal on all processes of a variable."""
        return keras.ops.convert_to_numpy(variable).tobytes()


def describe_differences(table: np.ndarray, addresses, subject: str, names):
    """Raise a ValueError that names rows of a table that differ from the first.

    Shapes:
        table: (workers, values), checksums.
    """
    faults = []
    for index, row in enumerate(table):
        different = [names[i] for i in np.flatnonzero(row != table[0])]
        if different:
            faults.append(
                f"worker {index} ({addresses[index]}) differs in "
                + list_first(different)
            )
    if faults:
        raise ValueError(
            f"All workers must have the same {subject}. Start them with the "
            "same flags and the same files. Compared with worker 0 "
            f"({addresses[0]}): {'; '.join(faults)}"
        )
