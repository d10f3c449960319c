"""Which slots of a global batch each worker, replica and stream fills."""

import dataclasses
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class BatchSlots:
    """The slots of the global batch that one worker fills.

    The global batch has `batch_size` slots, one after the other those of the
    workers and, in each, those of its replicas. Each stream fills an equal
    share of consecutive slots as well.

    Args:
        batch_size: Images of the global batch.
        num_replicas: Replicas of all workers. Must divide batch_size.
        worker: Number of this worker, from 0.
        num_workers: Must divide num_replicas.
        num_streams: Must divide batch_size, and must divide num_workers or
            be divided by it.

    Raises:
        ValueError: If a number does not divide.

    Example:
        >>> BatchSlots(32, num_replicas=4, worker=1, num_workers=2).slots
        range(16, 32)
    """

    batch_size: int
    num_replicas: int = 1
    worker: int = 0
    num_workers: int = 1
    num_streams: int = 1

    def __post_init__(self):
        for name, divisor in (
            ("batch_size", "num_replicas"),
            ("num_replicas", "num_workers"),
            ("batch_size", "num_streams"),
        ):
            number, by = getattr(self, name), getattr(self, divisor)
            if number < 1 or by < 1 or number % by:
                raise ValueError(
                    f"`{name}` must be a multiple of `{divisor}`. "
                    f"Received: {name}={number}, {divisor}={by}"
                )
        if self.worker not in range(self.num_workers):
            raise ValueError(
                f"`worker` must be from 0 to {self.num_workers - 1}. "
                f"Received: worker={self.worker}"
            )
        workers, streams = self.num_workers, self.num_streams
        if streams % workers and workers % streams:
            raise ValueError(
                "`num_streams` must be a multiple of `num_workers` or divide "
                f"it. Received: num_streams={streams}, num_workers={workers}"
            )

    @property
    def slots(self) -> range:
        """The slots of this worker."""
        size = self.batch_size // self.num_workers
        return range(self.worker * size, (self.worker + 1) * size)

    @property
    def per_replica(self) -> int:
        """Slots of a replica."""
        return self.batch_size // self.num_replicas

    @property
    def per_stream(self) -> int:
        """Slots of a stream."""
        return self.batch_size // self.num_streams

    @property
    def per_piece(self) -> int:
        """Slots that a stream and this worker have in common."""
        return min(self.per_stream, len(self.slots))

    @property
    def streams(self) -> range:
        """The streams that fill the slots of this worker."""
        slots, size = self.slots, self.per_stream
        return range(slots.start // size, math.ceil(slots.stop / size))

    def contains(self, slot: tf.Tensor) -> tf.Tensor:
        """Return whether `slot` is one of this worker."""
        return (self.slots.start <= slot) & (slot < self.slots.stop)
