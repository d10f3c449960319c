"""Streams of training examples: their order over the epochs."""

import numpy as np
import tensorflow as tf

from trainers.data.datasets import ImageDataset
from trainers.data.decoding import as_written
from trainers.data.slots import BatchSlots
from trainers.data.splits import count_examples

ENDLESS = np.iinfo(np.int64).max


def read_stream(
    dataset: ImageDataset,
    stream: int,
    slots: BatchSlots,
    *,
    seed: int,
    first_step: int,
    decode=None,
) -> tf.data.Dataset:
    """Return the endless examples of a stream for the slots of a worker.

    The order of an epoch depends only on the seed, the stream and the epoch,
    so resuming in the middle of an epoch reads at most one epoch.

    Shapes:
        yields the position in the run and an example, as a pair.

    Args:
        dataset: The data set; its train split is read.
        stream: Index of the stream, from 0.
        slots: The slots to fill.
        seed: Seed of the order.
        first_step: Number of global batches to skip at the start.
        decode: See `make_decode`; the decoded images are cached in memory.
            None returns examples as they are stored.

    Raises:
        ValueError: If there are fewer examples than streams.
    """
    ranges = dataset.ranges(dataset.train_split, stream, slots.num_streams)
    num_examples = count_examples(ranges)
    if not num_examples:
        raise ValueError(
            "`num_streams` must not exceed the number of training examples. "
            f"Received: num_streams={slots.num_streams}, "
            f"dataset={dataset.name!r}"
        )
    examples = dataset.reader.read(ranges)
    if decode is not None:
        examples = examples.map(
            as_written(decode), num_parallel_calls=tf.data.AUTOTUNE
        ).cache()
    buffer = dataset.reader.shuffle_buffer // slots.num_streams
    buffer = min(max(buffer, 1), num_examples)
    size = slots.per_stream
    first_epoch, rest = divmod(first_step * size, num_examples)
    ordered = _shuffle_epochs(
        examples, num_examples, buffer, (seed, stream), first_epoch
    ).skip(rest)

    def find_slot(index):
        return stream * size + index % size

    def find_position(index, example):
        return index // size * slots.batch_size + find_slot(index), example

    if len(slots.slots) < size:
        ordered = ordered.filter(
            as_written(lambda index, _: slots.contains(find_slot(index)))
        )
    return ordered.map(as_written(find_position))


def _shuffle_epochs(examples, num_examples, buffer, seeds, first_epoch):
    """Return (index, example) of all epochs from `first_epoch` on."""

    def order_epoch(epoch):
        # Sets the seed of the graph of this function, so that the order does
        # not depend on the global seed of the program.
        tf.random.set_seed(1)
        key = tf.random.fold_in(tf.constant(seeds, tf.int64), epoch)
        shuffle_seed = tf.random.stateless_uniform(
            (), key, 0, 2**31 - 1, tf.int64
        )
        return examples.shuffle(buffer, shuffle_seed).enumerate(
            epoch * num_examples
        )

    return tf.data.Dataset.range(first_epoch, ENDLESS).flat_map(
        as_written(order_epoch)
    )
