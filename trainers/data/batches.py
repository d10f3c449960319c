"""The batches of one worker, for training and evaluation.

An example is read, decoded, augmented, resized and normalised. The content of
a batch depends only on the seed and the step, not on the number of workers,
replicas or threads. The global batch of a step has `batch_size` slots. Each
worker fills an equal number of consecutive slots, one batch per replica.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from keras_vit.preprocessing import preprocess_input
from keras_vit.preprocessing.description import Normalization
from trainers.augment.augmentation import Augmentation, parse_augmentation
from trainers.augment.operations import UNKNOWN, resize_map
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import (
    BadExamples,
    as_written,
    fits_into_memory,
    make_decode,
)
from trainers.data.pixels import USUAL
from trainers.data.splits import count_examples, take_ranges


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
    """Return the endless training batches of one worker.

    The train split is divided into streams. Each stream shuffles its examples
    anew in each epoch and fills an equal share of each global batch. With as
    many streams as workers, each worker reads only its share of the files.
    With one stream, every worker reads all files, but decodes only its share
    of the images.

    A run that resumes at `first_step` gets the same batches as without the
    interruption. To find its place, it reads at most one epoch, and decodes no
    image that it does not need.

    An image that cannot be read keeps its slot with weight 0, and so does an
    image without a label.

    Operations that mix images form pairs within the part of a stream that a
    worker fills. If this part has an even number of images, or is the whole
    share of the stream, the pairs are the same for any number of workers.

    With `data_service`, the workers of a tf.data service decode and augment
    the images. Each of them iterates over its own epochs. So epochs overlap,
    and a run cannot be repeated exactly, even with the same seed. A run
    resumes in the right epoch, but not at the right image. An image that
    cannot be read ends the run with the message of TensorFlow.

    Shapes:
        yields images (B, H, W, C), floats in the range of the augmentation,
        labels (B, classes), one-hot or multi-hot floats, and weights (B,),
        where B is batch_size / num_replicas. With maps, the labels are these,
        (B, H, W), see `maps.py`; an image of which nothing is known has
        weight 0.

    Args:
        dataset: The data set to read.
        image_size: (height, width) of the images in the batches, in pixels.
        batch_size: Number of images in the global batch.
        augment: See `parse_augmentation`.
        seed: Seed of the order and the augmentation.
        first_step: Number of global batches to skip at the start.
        num_replicas: See `BatchSlots`.
        worker: See `BatchSlots`.
        num_workers: See `BatchSlots`.
        num_streams: See `BatchSlots`.
        bad_examples: Records the images that cannot be read; None stops at
            the first one.
        data_service: Address of a dispatcher, `grpc://HOST:PORT`.

    Raises:
        ValueError: If the numbers do not divide as stated, or the train split
            is empty.
    """
    slots = BatchSlots(
        batch_size, num_replicas, worker, num_workers, num_streams
    )
    augmentation = parse_augmentation(augment, image_size)
    if data_service is None:
        reading = slots
        decode = make_decode(dataset, bad_examples or BadExamples())
    else:  # Each worker of the service reads the whole split.
        check_data_service(dataset, num_streams, bad_examples)
        reading = BatchSlots(batch_size)
        decode = make_decode(dataset)
    # Small data sets are decoded once and cached, others in every epoch.
    is_kept = fits_into_memory(dataset)
    prepare = make_prepare(
        dataset, image_size, augmentation, seed, None if is_kept else decode
    )
    streams = [
        read_stream(
            dataset,
            stream,
            reading,
            seed=seed,
            first_step=first_step,
            decode=decode if is_kept else None,
        )
        .map(as_written(prepare), **IN_ORDER)
        .batch(slots.per_piece, drop_remainder=True)
        for stream in reading.streams
    ]

    def mix(index, batch):
        images, labels, weights = batch
        step = first_step + index // len(streams)
        # Negative numbers, so that the seeds differ from those of the images.
        batch_seed = tf.stack([tf.constant(seed, tf.int64), -1 - step])
        images, labels = augmentation.batch(images, labels, weights, batch_seed)
        return images, _without_channel(labels), weights

    batches = tf.data.Dataset.choose_from_datasets(
        streams, tf.data.Dataset.range(len(streams)).repeat()
    )
    if data_service is not None:
        job = f"{dataset.name}_{seed}_{first_step}"
        batches = distribute(batches, data_service, job, num_workers)
    batches = batches.enumerate().map(
        as_written(mix), num_parallel_calls=tf.data.AUTOTUNE
    )
    if slots.per_piece != slots.per_replica:
        batches = batches.rebatch(slots.per_replica, drop_remainder=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def distribute(
    batches: tf.data.Dataset, address: str, job: str, num_workers: int
) -> tf.data.Dataset:
    """Let the workers of a tf.data service compute the batches."""
    service = tf.data.experimental.service
    policy = service.ShardingPolicy.DYNAMIC
    job = job if num_workers > 1 else None  # A single worker shares nothing.
    return batches.apply(service.distribute(policy, address, job_name=job))


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
    with_names: bool = False,
) -> tf.data.Dataset:
    """Return the evaluation batches of one worker, for one pass.

    The last global batch is padded with images of weight 0. So all batches
    have the same shape, all workers have the same number of batches, and every
    example counts exactly once.

    Shapes:
        yields images (B, H, W, C), floats in the range of `preprocess`, labels
        (B, classes) and weights (B,), where B is batch_size / num_replicas.
        With `with_names`, also the names of the examples (B,), strings.

    Args:
        dataset: The data set to read.
        image_size: (height, width) of the images in the batches, in pixels.
        batch_size: Number of images in the global batch.
        preprocess: See `parse_augmentation`. Default: the image is resized.
        num_replicas: See `BatchSlots`.
        worker: See `BatchSlots`.
        num_workers: See `BatchSlots`.
        bad_examples: Records the images that cannot be read; None stops at
            the first one.
        with_names: Whether to yield the names of the examples as well.

    Raises:
        ValueError: If the numbers do not divide as stated, or the evaluation
            split is empty.
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
    nothing = tf.zeros((len(dataset.class_names),))
    filler = (
        tf.zeros((*image_size, dataset.channels)),
        tf.fill((*image_size, 1), UNKNOWN) if dataset.maps else nothing,
        tf.zeros(()),
        *([tf.constant("")] if with_names else []),
    )

    def prepare_named(position, example):
        prepared = prepare(position, example)
        return (*prepared, example[-1]) if with_names else prepared

    def arrange(images, labels, *rest):
        return images, _without_channel(labels), *rest

    return (
        dataset.reader.read(ranges)
        .enumerate()
        .filter(lambda position, _: slots.contains(position % batch_size))
        .map(as_written(prepare_named), **IN_ORDER)
        .concatenate(tf.data.Dataset.from_tensors(filler).repeat(missing))
        .batch(slots.per_replica, drop_remainder=True)
        .map(as_written(arrange))
        .prefetch(tf.data.AUTOTUNE)
    )


def read_batches(
    dataset: ImageDataset,
    image_size: tuple[int, int],
    batch_size: int,
    preprocess: str = "",
    bad_examples: BadExamples | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the batches of the evaluation split as arrays.

    Shapes:
        yields images (B, H, W, C), labels (B, classes), whether each image
        counts (B,) and its name (B,), bytes, with B = batch_size.

    Args:
        dataset: The data set; its evaluation split is read.
        image_size: (height, width) of the images, in pixels.
        batch_size: Number of images per batch.
        preprocess: See `eval_batches`.
        bad_examples: Records the images that cannot be read, which are not
            counted; None stops at the first one.

    Raises:
        ValueError: If the data set cannot be read.
    """
    bad_examples = bad_examples or BadExamples()
    batches = eval_batches(
        dataset,
        image_size=image_size,
        batch_size=batch_size,
        preprocess=preprocess,
        bad_examples=bad_examples,
        with_names=True,
    ).as_numpy_iterator()
    with bad_examples.named_errors():
        for images, labels, weights, names in batches:
            yield images, labels, weights > 0, names


def read_images(
    dataset: ImageDataset,
    first: int,
    last: int,
    *,
    image_size: tuple[int, int],
    batch_size: int,
    preprocess: str = "",
    bad_examples: BadExamples | None = None,
) -> tf.data.Dataset:
    """Return images of the evaluation split, also those without a label.

    Shapes:
        yields images (B, H, W, C), floats in the range of `preprocess`; the
        labels as the reader has them, B rows; whether each image can be read
        (B,); and their names (B,), strings. The last batch may be shorter.

    Args:
        dataset: The data set to read.
        first: Position in the split of the first image to read, from 0.
        last: The position after the last one.
        image_size: (height, width) of the images in the batches, in pixels.
        batch_size: Number of images per batch.
        preprocess: See `parse_augmentation`. Default: the image is resized.
        bad_examples: Records the images that cannot be read; None stops at
            the first one.
    """
    augmentation = parse_augmentation(preprocess, image_size, "preprocess")
    decode = make_decode(dataset, bad_examples or BadExamples())
    read = make_prepare_image(dataset, image_size, augmentation, 0, decode)
    shape = (*image_size, dataset.channels)

    def prepare(position, example):
        image, label, is_good = read(position, example)
        return tf.ensure_shape(image, shape), label, is_good > 0, example[-1]

    ranges = dataset.ranges(dataset.eval_split)
    ranges = take_ranges(ranges, first, last)
    return (
        dataset.reader.read(ranges)
        .enumerate(first)
        .map(as_written(prepare), **IN_ORDER)
        .ragged_batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def check_data_service(
    dataset: ImageDataset, num_streams: int, bad_examples: BadExamples | None
):
    """Raise a ValueError if a tf.data service does not support an option."""
    if dataset.maps:
        raise ValueError(
            "`data_service` must be unset for answers of each pixel, which "
            f"its workers cannot read. Received: dataset={dataset.name!r}"
        )
    if getattr(dataset.reader, "pixels", USUAL) != USUAL:
        raise ValueError(
            "`channels` and `pixel_range` must be unset with `data_service`, "
            "whose workers cannot read such files. "
            f"Received: channels={dataset.channels}, "
            f"pixel_range={dataset.reader.pixels.pixel_range}"
        )
    if num_streams != 1:
        raise ValueError(
            "`num_streams` must be 1 with `data_service`, which divides the "
            f"examples itself. Received: num_streams={num_streams}"
        )
    if bad_examples is not None and bad_examples.limit:
        raise ValueError(
            "`max_bad_examples` must be 0 with `data_service`, whose workers "
            "cannot report names. "
            f"Received: max_bad_examples={bad_examples.limit}"
        )


def _without_channel(labels):
    """Return maps (B, H, W) of those of one channel; others as they are."""
    return labels[..., 0] if labels.shape.rank == 4 else labels


ENDLESS = np.iinfo(np.int64).max
# How the examples of a stream are computed.
IN_ORDER = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


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


def make_prepare(
    dataset: ImageDataset,
    image_size: tuple[int, int],
    augmentation: Augmentation,
    seed: int,
    decode: Callable | None = None,
) -> Callable:
    """Return a function that turns an example into an input of the model.

    Shapes:
        The function takes the position in the run and an example. The example
        is the image (H, W, C), the label, and whether the image is readable;
        with `decode`, it is the arguments of that function. The function
        returns the image at `image_size`, the label (classes,) and the weight.

    Args:
        dataset: The data set of the examples.
        image_size: (height, width) of the result, in pixels.
        augmentation: The augmentation of the images.
        seed: Seed of the augmentation, combined with the position.
        decode: See `make_decode`; None if the examples are already decoded.
    """
    num_classes = len(dataset.class_names)
    read = make_prepare_image(dataset, image_size, augmentation, seed, decode)

    def prepare(position, example):
        image, label, is_good = read(position, example)
        if dataset.maps:
            is_known = tf.reduce_any(tf.logical_not(tf.math.is_nan(label)))
            return image, label, is_good * tf.cast(is_known, tf.float32)
        if dataset.has_several_labels:
            is_known = tf.logical_not(tf.math.is_nan(label))
            weight = is_good * tf.cast(tf.reduce_any(is_known), tf.float32)
            label = tf.ensure_shape(label, (num_classes,))
        else:  # A label may be several classes, or none.
            label = tf.one_hot(tf.reshape(label, (-1,)), num_classes)
            label = tf.minimum(tf.reduce_sum(label, 0), 1.0)
            weight = is_good * tf.reduce_max(label)
        if not dataset.needs_labels:
            weight = is_good
        return image, tf.where(is_good > 0, label, 0.0), weight

    return prepare


def make_prepare_image(
    dataset: ImageDataset,
    image_size: tuple[int, int],
    augmentation: Augmentation,
    seed: int,
    decode: Callable | None = None,
) -> Callable:
    """Return `make_prepare` without its label and weight.

    Shapes:
        The function returns the image at `image_size`, zeros if it is
        unreadable; the label as the example has it, a map at `image_size`,
        (H, W, 1); and 1.0, or 0.0 if the image is unreadable.
    """
    # If all images have one size, they are small, and are decoded whole. With
    # maps, whole images show whether both have one size.
    is_window = None in dataset.reader.image_shape and not dataset.maps
    is_window &= decode is not None and augmentation.pick_window is not None

    def prepare(position, example):
        draw = tf.stack([tf.constant(seed, tf.int64), position])
        name = "" if decode is None else example[2]
        if is_window:
            example = decode(
                *example, lambda shape: augmentation.pick_window(shape, draw)
            )
        elif decode is not None:
            example = decode(*example)
        image, label, is_good = example
        shape = (*image_size, dataset.channels)

        def augment_both():
            augmented, target = augmentation.both(
                tf.cast(image, tf.float32), label, draw, name
            )
            augmented = to_model_input(
                augmented, image_size, augmentation.normalization
            )
            return augmented, resize_map(target, image_size)

        if dataset.maps:
            nothing = tf.zeros(shape), tf.fill((*image_size, 1), UNKNOWN)
            image, label = tf.cond(is_good > 0, augment_both, lambda: nothing)
            label = tf.ensure_shape(label, (*image_size, 1))
            return image, label, is_good

        def augment():
            augmented = augmentation.image(
                tf.cast(image, tf.float32), draw, is_window, name
            )
            return to_model_input(
                augmented, image_size, augmentation.normalization
            )

        image = tf.cond(is_good > 0, augment, lambda: tf.zeros(shape))
        return image, label, is_good

    return prepare


def make_prepare_one(
    preprocess: str, image_size: tuple[int, int]
) -> tuple[Callable, Normalization]:
    """Return a function that turns one image into an input of the model.

    Shapes:
        The function takes (H', W', C), from 0 to 255, and returns (H, W, C),
        floats.

    Args:
        preprocess: See `parse_augmentation`.
        image_size: (H, W).

    Returns:
        The function, and mean and deviation of its images.
    """
    augmentation = parse_augmentation(preprocess, image_size, "preprocess")

    def prepare(pixels):
        image = tf.cast(pixels, tf.float32)
        image = augmentation.image(image, tf.zeros(2, tf.int64))
        return to_model_input(image, image_size, augmentation.normalization)

    return prepare, augmentation.normalization


def to_model_input(image, image_size, mode="vit"):
    """Resize an image, ignoring its aspect ratio, and normalise its pixels.

    By default, this is the preprocessing of the official ViT code for
    evaluation.
    """
    image = tf.convert_to_tensor(image)
    if tuple(image.shape[-3:-1]) != tuple(image_size):
        image = tf.image.resize(image, image_size)
    return preprocess_input(image, "channels_last", mode)
