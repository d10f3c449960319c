"""The slots of a global batch that each worker, replica and stream fills."""

import dataclasses
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class BatchSlots:
    """The slots of the global batch that one worker fills.

    The global batch has `batch_size` slots. They are divided in order among
    the workers, and the slots of each worker among its replicas. Each stream
    also fills an equal share of consecutive slots.

    Args:
        batch_size: Number of images in the global batch.
        num_replicas: Number of replicas of all workers. Must divide
            batch_size.
        worker: Index of this worker, from 0.
        num_workers: Number of workers. Must divide num_replicas.
        num_streams: Number of streams. Must divide batch_size, and must
            divide num_workers or be a multiple of it.

    Raises:
        ValueError: If the numbers do not divide as stated.

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
        """Number of slots of a replica."""
        return self.batch_size // self.num_replicas

    @property
    def per_stream(self) -> int:
        """Number of slots of a stream."""
        return self.batch_size // self.num_streams

    @property
    def per_piece(self) -> int:
        """Number of slots that a stream and this worker share."""
        return min(self.per_stream, len(self.slots))

    @property
    def streams(self) -> range:
        """The streams that fill the slots of this worker."""
        slots, size = self.slots, self.per_stream
        return range(slots.start // size, math.ceil(slots.stop / size))

    def contains(self, slot: tf.Tensor) -> tf.Tensor:
        """Return whether `slot` belongs to this worker."""
        return (self.slots.start <= slot) & (slot < self.slots.stop)
