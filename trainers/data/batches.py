"""The tf.data pipelines: from a data set to the batches of a worker.

What is in a batch depends on the seed and the number of the step, never on
the number of workers, replicas or threads. A step has a global batch of
`batch_size` slots. Each worker fills as many of them, one after the other, in
batches of one replica each.
"""

import contextlib
import math
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.image_decoding import (
    JPEG_END,
    cut_window,
    decode_window,
    turn_upright,
)
from trainers.augment.operations import parse_augmentation
from trainers.data.datasets import ImageDataset

# No function here has Python's control flow over tensors; to look for it would
# take most of the time of building a pipeline.
as_written = tf.autograph.experimental.do_not_convert

CACHE_BYTES = 2**28  # Decoded images of a split that are kept in memory.
ENDLESS = np.iinfo(np.int64).max


class BadExampleError(ValueError):
    """More images than allowed cannot be read."""


class BadExamples:
    """The images that could not be read, by name. Threads may share it.

    Args:
        limit: How many to leave out before the pipeline stops.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self._names = {}  # In the order in which they were met.
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The distinct names so far."""
        with self._lock:
            return list(self._names)

    def report(self, name: str):
        """Note that `name` cannot be read.

        Raises:
            BadExampleError: If that is one too many.
        """
        with self._lock:
            self._names[name] = None
        self.check()

    def check(self):
        """Raise a BadExampleError if there are more than allowed."""
        names = self.names
        if len(names) > self.limit:
            listed = ", ".join(f"`{name}`" for name in names[:10])
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            what = "is not a readable image"
            what = what if len(names) == 1 else "are not readable images"
            raise BadExampleError(
                f"{listed}{more} {what} of the data set; "
                f"--max_bad_examples={self.limit}"
            )

    @contextlib.contextmanager
    def named_errors(self):
        """Raise the BadExampleError in the place of what tf.data makes of it.

        Wraps what iterates over the batches.
        """
        try:
            yield
        except tf.errors.OpError:
            self.check()
            raise


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

    The train split is cut into streams. Each has an order of its own in each
    epoch, and an equal share of each global batch, one after the other. With
    as many streams as workers, a worker reads its share of the files only;
    with one stream every worker reads all of them, but decodes its share.

    A run that goes on at `first_step` sees what it would have seen; to get
    there it reads no more than one epoch, and decodes nothing in vain.

    An image that cannot be read stays in its slot, with weight 0. So does one
    without a label.

    Operations that mix images take them in pairs, from the share of a stream
    or what a worker has of it. If that is an even number, or whole shares,
    they mix the same images on any number of workers.

    `data_service` leaves decoding and augmentation to the workers of a
    tf.data service. Given up for it: each of them goes through epochs of its
    own and batches come as they are ready, so that epochs overlap and no run
    can be repeated bit by bit, not even by seed; a run that goes on does so
    in the right epoch, but not at the right image; an image that cannot be
    read ends the run with the message of TensorFlow.

    Shapes:
        yields images (B, H, W, C), floats in the range of the augmentation,
        labels (B, classes), one-hot or multi-hot floats, and weights (B,),
        where B is batch_size / num_replicas.

    Args:
        dataset: Where the images come from.
        image_size: (height, width) of the batches, in pixels.
        batch_size: Images of the global batch.
        augment: See `parse_augmentation`.
        seed: Of the order and the augmentation.
        first_step: Number of global batches to leave out at the start.
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
    operations = parse_augmentation(augment, image_size)
    slots = worker_slots(batch_size, num_replicas, worker, num_workers)
    check_streams(batch_size, num_workers, num_streams)
    share = batch_size // num_streams
    piece = min(share, len(slots))  # What a worker has of a share.
    decode = make_decode(dataset, bad_examples or BadExamples())
    if data_service is not None:
        check_data_service(num_streams, bad_examples)
        slots, decode = range(batch_size), make_decode(dataset)
    cached = fits_into_memory(dataset)
    prepare = make_prepare(
        dataset, image_size, operations, seed, None if cached else decode
    )
    streams = [
        read_stream(
            dataset,
            decode if cached else None,
            prepare,
            slots,
            seed=seed,
            first_step=first_step,
            batch_size=batch_size,
            stream=stream,
            num_streams=num_streams,
        ).batch(piece, drop_remainder=True)
        for stream in range(slots.start // share, math.ceil(slots.stop / share))
    ]
    batches = tf.data.Dataset.choose_from_datasets(
        streams, tf.data.Dataset.range(len(streams)).repeat()
    )
    if data_service is not None:
        batches = batches.apply(
            tf.data.experimental.service.distribute(
                tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                data_service,
                # Several that train share the epochs, one does not share.
                job_name=f"{dataset.name}_{seed}_{first_step}"
                if num_workers > 1
                else None,
            )
        )

    def finish(index, batch):
        images, labels, weights = batch
        step = first_step + index // len(streams)
        # Numbers below 0: no image draws from these seeds.
        batch_seed = tf.stack([tf.constant(seed, tf.int64), -1 - step])
        images, labels = operations.batch(images, labels, weights, batch_seed)
        return images, labels, weights

    batches = batches.enumerate().map(
        as_written(finish), num_parallel_calls=tf.data.AUTOTUNE
    )
    if piece != batch_size // num_replicas:
        batches = batches.rebatch(
            batch_size // num_replicas, drop_remainder=True
        )
    return batches.prefetch(tf.data.AUTOTUNE)


def read_stream(
    dataset,
    decode,
    prepare,
    slots,
    *,
    seed,
    first_step,
    batch_size,
    stream,
    num_streams,
):
    """Return the prepared examples of a stream that belong to `slots`.

    The order of an epoch depends on the seed, the stream and the epoch: to go
    on in the middle takes no more than to read one epoch. With `decode` the
    images are kept in memory, otherwise `prepare` decodes them.
    """
    ranges = dataset.ranges(dataset.train_split, stream, num_streams)
    num_examples = sum(last - first for _, first, last in ranges)
    if not num_examples:
        raise ValueError(
            "`num_streams` must not be more than the examples to train on. "
            f"Received: num_streams={num_streams}, dataset={dataset.name!r}"
        )
    examples = dataset.source.read(ranges)
    if decode is not None:  # Small enough to be kept.
        examples = examples.map(
            as_written(decode), num_parallel_calls=tf.data.AUTOTUNE
        ).cache()
    buffer = dataset.source.shuffle_buffer // num_streams
    share = batch_size // num_streams
    first_epoch, rest = divmod(first_step * share, num_examples)

    def order_epoch(epoch):
        # Of the graph of this function: the order shall not depend on the
        # seed that the program has set.
        tf.random.set_seed(1)
        key = tf.random.fold_in(tf.constant([seed, stream], tf.int64), epoch)
        shuffle_seed = tf.random.stateless_uniform(
            (), key, 0, 2**31 - 1, tf.int64
        )
        return examples.shuffle(
            min(max(buffer, 1), num_examples), shuffle_seed
        ).enumerate(epoch * num_examples)

    def find_slot(index):
        return stream * share + index % share

    def finish(index, example):
        return prepare(index // share * batch_size + find_slot(index), *example)

    ordered = tf.data.Dataset.range(first_epoch, ENDLESS).flat_map(
        as_written(order_epoch)
    )
    ordered = ordered.skip(rest)
    if len(slots) < share:
        ordered = ordered.filter(
            lambda index, _: (
                (slots.start <= find_slot(index))
                & (find_slot(index) < slots.stop)
            )
        )
    return ordered.map(
        as_written(finish),
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

    The last global batch is filled up with images of weight 0, so that all
    batches have one shape, every worker has as many, and every example counts
    once.

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
    operations = parse_augmentation(preprocess, image_size, "preprocess")
    slots = worker_slots(batch_size, num_replicas, worker, num_workers)
    decode = make_decode(dataset, bad_examples or BadExamples())
    prepare = make_prepare(dataset, image_size, operations, 0, decode)
    ranges = dataset.ranges(dataset.eval_split)
    num_examples = dataset.num_examples(dataset.eval_split)
    filled = math.ceil(num_examples / batch_size) * batch_size
    missing = sum(p % batch_size in slots for p in range(num_examples, filled))
    filler = tf.data.Dataset.from_tensors(
        (
            tf.zeros((*image_size, dataset.channels)),
            tf.zeros((len(dataset.class_names),)),
            tf.zeros(()),
        )
    ).repeat(missing)
    return (
        dataset.source.read(ranges)
        .enumerate()
        .filter(
            lambda position, _: (
                (slots.start <= position % batch_size)
                & (position % batch_size < slots.stop)
            )
        )
        .map(
            as_written(lambda position, example: prepare(position, *example)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        .concatenate(filler)
        .batch(batch_size // num_replicas, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def worker_slots(
    batch_size: int, num_replicas: int, worker: int, num_workers: int
) -> range:
    """Return the slots of the global batch that `worker` fills.

    Raises:
        ValueError: If the slots cannot be shared evenly.

    Example:
        >>> worker_slots(32, num_replicas=4, worker=1, num_workers=2)
        range(16, 32)
    """
    if batch_size < 1 or num_replicas < 1 or batch_size % num_replicas:
        raise ValueError(
            "`batch_size` must be a multiple of `num_replicas`. "
            f"Received: batch_size={batch_size}, num_replicas={num_replicas}"
        )
    if num_workers < 1 or num_replicas % num_workers:
        raise ValueError(
            "`num_replicas` must be a multiple of `num_workers`. Received: "
            f"num_replicas={num_replicas}, num_workers={num_workers}"
        )
    if worker not in range(num_workers):
        raise ValueError(
            f"`worker` must be from 0 to {num_workers - 1}. "
            f"Received: worker={worker}"
        )
    size = batch_size // num_workers
    return range(worker * size, (worker + 1) * size)


def check_streams(batch_size: int, num_workers: int, num_streams: int):
    """Raise a ValueError unless streams and workers fit to each other."""
    if num_streams < 1 or batch_size % num_streams:
        raise ValueError(
            "`num_streams` must divide `batch_size`. Received: "
            f"num_streams={num_streams}, batch_size={batch_size}"
        )
    if num_streams % num_workers and num_workers % num_streams:
        raise ValueError(
            "`num_streams` must be a multiple of `num_workers` or divide it. "
            f"Received: num_streams={num_streams}, num_workers={num_workers}"
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


def fits_into_memory(dataset: ImageDataset) -> bool:
    """Return whether the decoded images to train on are few enough to keep."""
    shape = dataset.source.image_shape
    if None in shape:
        return False  # Photos: sizes unknown, and together too large.
    num_examples = dataset.num_examples(dataset.train_split)
    return num_examples * math.prod(shape) <= CACHE_BYTES


def make_decode(dataset: ImageDataset, bad_examples: BadExamples | None = None):
    """Return the function that decodes an example and survives a bad one.

    Shapes:
        The function takes (stored, label, name, pick_window=None) and returns
        the image (H, W, C) or the window of it that is picked, the label and
        1.0; or zeros, the label and 0.0.

    Args:
        dataset: Where the examples come from.
        bad_examples: Is told the bad ones; None lets errors pass.
    """
    source = dataset.source
    shape = source.image_shape
    attempt = _attempt if bad_examples is not None else _go

    def report(name):
        bad_examples.report(name.decode("utf-8", "replace"))

    def replace(name):
        tf.numpy_function(report, [name], [])
        return tf.zeros([size or 1 for size in shape], tf.uint8)

    def decode(stored, label, name, pick_window=None):
        def decode_whole(stored):
            encoded = source.fetch(stored)
            image = source.decode(encoded)
            if pick_window is not None:
                image = cut_window(image, pick_window(tf.shape(image)))
            return image, encoded

        def decode_part(stored):
            encoded = source.fetch(stored)
            return decode_window(encoded, pick_window, shape[-1]), encoded

        if pick_window is None:
            image, encoded = attempt(decode_whole, stored, shape[-1])
        else:
            # Whether the file is whole does not show in a part: it must have
            # its end, and what has none, or is no JPEG, is decoded as a whole.
            image, encoded = _attempt(decode_part, stored, shape[-1])
            image, encoded = tf.cond(
                tf.strings.substr(encoded, -2, 2) == JPEG_END,
                lambda: (image, encoded),
                lambda: attempt(decode_whole, stored, shape[-1]),
            )
        if source.is_turned:
            image = turn_upright(image, encoded)
        if bad_examples is None:
            return image, label, tf.ones(())
        is_good = tf.size(image) > 0
        image = tf.cond(is_good, lambda: image, lambda: replace(name))
        if pick_window is None:
            image = tf.ensure_shape(image, shape)
        return image, label, tf.cast(is_good, tf.float32)

    return decode


def _go(function, stored, channels):
    return function(stored)


def _attempt(function, stored, channels):
    """Return what `function` gives, or an image without pixels if it fails.

    Inside of a graph only a data set can catch an error. It takes about 0.1 ms
    and more for each operation in `function`.
    """
    nothing = tf.zeros((0, 0, channels), tf.uint8), tf.constant(b"none")
    good = tf.data.Dataset.from_tensors(stored).map(as_written(function))
    both = good.ignore_errors().concatenate(
        tf.data.Dataset.from_tensors(nothing)
    )
    return both.take(1).get_single_element()


def make_prepare(dataset, image_size, operations, seed, decode=None):
    """Return the function that makes of an example what the model is given.

    Shapes:
        The function takes the position in the run and an example: the image
        (H, W, C), the label and whether the image is good; or, with `decode`,
        what that takes. It returns the image at `image_size`, the label
        (classes,) and the weight.
    """
    num_classes = len(dataset.class_names)

    def prepare(position, *example):
        draw = tf.stack([tf.constant(seed, tf.int64), position])
        name = "" if decode is None else example[2]
        # Images of one size are small.
        is_window = None in dataset.source.image_shape
        is_window &= decode is not None and operations.pick_window is not None
        if is_window:
            example = decode(
                *example, lambda shape: operations.pick_window(shape, draw)
            )
        elif decode is not None:
            example = decode(*example)
        image, label, is_good = example

        def finish():
            augmented = operations.image(
                tf.cast(image, tf.float32), draw, is_window, name
            )
            return to_model_range(augmented, image_size, operations.value_range)

        black = tf.zeros((*image_size, dataset.channels))
        # A label may be several classes, or none.
        label = tf.one_hot(tf.reshape(label, (-1,)), num_classes)
        label = tf.minimum(tf.reduce_sum(label, 0), 1.0)
        weight = is_good * tf.reduce_max(label)
        image = tf.cond(is_good > 0, finish, lambda: black)
        return image, label * is_good, weight

    return prepare


def make_prepare_one(
    preprocess: str, image_size: tuple[int, int]
) -> tuple[Callable, tuple[float, float]]:
    """Return what makes of pixels what the model is evaluated on.

    Shapes:
        The function takes (H', W', C), from 0 to 255, and returns (H, W, C),
        floats.

    Args:
        preprocess: See `parse_augmentation`.
        image_size: (H, W).

    Returns:
        The function, and the numbers that it makes of pixels of 0 and 255.
    """
    operations = parse_augmentation(preprocess, image_size, "preprocess")

    def prepare(pixels):
        image = tf.cast(pixels, tf.float32)
        image = operations.image(image, tf.zeros(2, tf.int64))
        return to_model_range(image, image_size, operations.value_range)

    return prepare, operations.value_range


def to_model_range(image, image_size, value_range=(-1.0, 1.0)):
    """Resize an image, aspect ratio ignored, and scale 0..255 to a range.

    The evaluation of the official ViT code.
    """
    low, high = value_range
    image = tf.convert_to_tensor(image)
    if tuple(image.shape[-3:-1]) != tuple(image_size):
        image = tf.image.resize(image, image_size)
    return image / (255.0 / (high - low)) + low
