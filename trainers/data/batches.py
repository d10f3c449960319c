"""Batches to train and to evaluate on, those of one worker.

What is in a batch depends on the seed and the number of the step, never on
the number of workers, replicas or threads. A step has a global batch of
`batch_size` slots. Each worker fills an equal number of them, one after the
other, in batches of one replica each.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from trainers.augment.augmentation import Augmentation, parse_augmentation
from trainers.data.bad_examples import BadExamples
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import as_written, fits_into_memory, make_decode
from trainers.data.model_inputs import make_prepare
from trainers.data.slots import BatchSlots
from trainers.data.streams import read_stream


def train_batches(
    dataset: ImageDataset,
    *,
    image_size: tuple[int, int],
    batch_size: int,
    augment: str = "",
    seed: int = 0,
    first_step: int = 0,
    num_replicas: int = 1,
    worker: int = 0,
    num_workers: int = 1,
    num_streams: int = 1,
    bad_examples: BadExamples | None = None,
    data_service: str | None = None,
) -> tf.data.Dataset:
    """Return the endless batches to train on, those of one worker.

    The train split is cut into streams. Each stream has its own order in each
    epoch and fills an equal share of each global batch. With as many streams
    as workers, each worker reads only its share of the files; with one stream
    every worker reads all files but decodes only its share of the images.

    A run that resumes at `first_step` gets the batches that it would have got
    without the stop. To get there it reads one epoch at most and decodes no
    image that it does not need.

    An image that cannot be read stays in its slot with weight 0, and so does
    an image without a label.

    Operations that mix images take them in pairs, from the part of a stream
    that a worker fills. If that part has an even number of images, or is a
    whole share, they mix the same images on any number of workers.

    `data_service` leaves decoding and augmentation to the workers of a
    tf.data service, each of which goes through epochs of its own. The price:
    epochs overlap, and no run can be repeated bit by bit, not even by seed; a
    run resumes in the right epoch but not at the right image; an image that
    cannot be read ends the run with the message of TensorFlow.

    Shapes:
        yields images (B, H, W, C), floats in the range of the augmentation,
        labels (B, classes), one-hot or multi-hot floats, and weights (B,),
        where B is batch_size / num_replicas.

    Args:
        dataset: Where the images come from.
        image_size: (height, width) of the batches, in pixels.
        batch_size: Images of the global batch.
        augment: See `parse_augmentation`.
        seed: Seed of the order and the augmentation.
        first_step: Number of global batches to skip at the start.
        num_replicas: Replicas of all workers. Must divide batch_size.
        worker: Number of this worker, from 0.
        num_workers: Must divide num_replicas.
        num_streams: Must divide batch_size, and must divide num_workers or
            be divided by it.
        bad_examples: Notes the images that cannot be read; None stops at the
            first.
        data_service: Address of a dispatcher, `grpc://HOST:PORT`.

    Raises:
        ValueError: If a number does not divide, or there is nothing to train
            on.
    """
    slots = BatchSlots(
        batch_size, num_replicas, worker, num_workers, num_streams
    )
    augmentation = parse_augmentation(augment, image_size)
    if data_service is None:
        reading = slots
        decode = make_decode(dataset, bad_examples or BadExamples())
    else:  # Each worker of the service reads the whole split.
        check_data_service(num_streams, bad_examples)
        reading = BatchSlots(batch_size)
        decode = make_decode(dataset)
    # Small data sets are decoded once and kept, others in every epoch.
    is_kept = fits_into_memory(dataset)
    prepare = make_prepare(
        dataset, image_size, augmentation, seed, None if is_kept else decode
    )
    streams = [
        prepare_examples(
            read_stream(
                dataset,
                stream,
                reading,
                seed=seed,
                first_step=first_step,
                decode=decode if is_kept else None,
            ),
            prepare,
        ).batch(slots.per_piece, drop_remainder=True)
        for stream in reading.streams
    ]
    batches = tf.data.Dataset.choose_from_datasets(
        streams, tf.data.Dataset.range(len(streams)).repeat()
    )
    if data_service is not None:
        job = f"{dataset.name}_{seed}_{first_step}"
        batches = distribute(batches, data_service, job, num_workers)
    batches = mix_batches(batches, augmentation, seed, first_step, len(streams))
    if slots.per_piece != slots.per_replica:
        batches = batches.rebatch(slots.per_replica, drop_remainder=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def mix_batches(
    batches: tf.data.Dataset,
    augmentation: Augmentation,
    seed: int,
    first_step: int,
    num_parts: int,
) -> tf.data.Dataset:
    """Apply the operations that mix images, such as mixup, to batches.

    Args:
        batches: Of images, labels and weights.
        augmentation: Whose operations on batches are applied.
        seed: Of the augmentation.
        first_step: Number of the first step.
        num_parts: How many batches in a row belong to one step.
    """

    def mix(index, batch):
        images, labels, weights = batch
        step = first_step + index // num_parts
        # Numbers below 0: no image draws from these seeds.
        batch_seed = tf.stack([tf.constant(seed, tf.int64), -1 - step])
        images, labels = augmentation.batch(images, labels, weights, batch_seed)
        return images, labels, weights

    return batches.enumerate().map(
        as_written(mix), num_parallel_calls=tf.data.AUTOTUNE
    )


def distribute(
    batches: tf.data.Dataset, address: str, job: str, num_workers: int
) -> tf.data.Dataset:
    """Leave the work on batches to the workers of a tf.data service.

    Args:
        batches: What the workers of the service compute.
        address: Of the dispatcher.
        job: Name of the job whose epochs several that train share.
        num_workers: How many train.
    """
    service = tf.data.experimental.service
    policy = service.ShardingPolicy.DYNAMIC
    job = job if num_workers > 1 else None  # One does not share.
    return batches.apply(service.distribute(policy, address, job_name=job))


def prepare_examples(
    examples: tf.data.Dataset, prepare: Callable
) -> tf.data.Dataset:
    """Return the model inputs of examples, in their order.

    Args:
        examples: (position, example) pairs.
        prepare: See `make_prepare`.
    """
    return examples.map(
        as_written(lambda position, example: prepare(position, *example)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def eval_batches(
    dataset: ImageDataset,
    *,
    image_size: tuple[int, int],
    batch_size: int,
    preprocess: str = "",
    num_replicas: int = 1,
    worker: int = 0,
    num_workers: int = 1,
    bad_examples: BadExamples | None = None,
) -> tf.data.Dataset:
    """Return the batches to evaluate on, once through, those of one worker.

    The last global batch is padded with images of weight 0. So all batches
    have one shape, all workers have the same number of them, and every example
    counts once.

    Shapes:
        yields images (B, H, W, C), floats in the range of `preprocess`, labels
        (B, classes) and weights (B,), where B is batch_size / num_replicas.

    Args:
        dataset: Where the images come from.
        image_size: (height, width) of the batches, in pixels.
        batch_size: Images of the global batch.
        preprocess: See `parse_augmentation`. Default: the image is resized.
        num_replicas: Replicas of all workers. Must divide batch_size.
        worker: Number of this worker, from 0.
        num_workers: Must divide num_replicas.
        bad_examples: Notes the images that cannot be read; None stops at the
            first.

    Raises:
        ValueError: If a number does not divide, or there is nothing to
            evaluate on.
    """
    slots = BatchSlots(batch_size, num_replicas, worker, num_workers)
    augmentation = parse_augmentation(preprocess, image_size, "preprocess")
    decode = make_decode(dataset, bad_examples or BadExamples())
    prepare = make_prepare(dataset, image_size, augmentation, 0, decode)
    ranges = dataset.ranges(dataset.eval_split)
    num_examples = dataset.num_examples(dataset.eval_split)
    filled = math.ceil(num_examples / batch_size) * batch_size
    missing = sum(
        position % batch_size in slots.slots
        for position in range(num_examples, filled)
    )
    filler = tf.data.Dataset.from_tensors(
        (
            tf.zeros((*image_size, dataset.channels)),
            tf.zeros((len(dataset.class_names),)),
            tf.zeros(()),
        )
    ).repeat(missing)
    examples = (
        dataset.reader.read(ranges)
        .enumerate()
        .filter(lambda position, _: slots.contains(position % batch_size))
    )
    return (
        prepare_examples(examples, prepare)
        .concatenate(filler)
        .batch(slots.per_replica, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def check_data_service(num_streams: int, bad_examples: BadExamples | None):
    """Raise a ValueError if a tf.data service cannot do what was asked."""
    if num_streams != 1:
        raise ValueError(
            "`num_streams` must be 1 with `data_service`, which distributes "
            f"the epochs itself. Received: num_streams={num_streams}"
        )
    if bad_examples is not None and bad_examples.limit:
        raise ValueError(
            "`max_bad_examples` must be 0 with `data_service`, whose workers "
            "cannot report names. "
            f"Received: max_bad_examples={bad_examples.limit}"
        )
