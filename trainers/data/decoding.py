"""Decoding the images of a data set inside its pipeline."""

import math
from collections.abc import Callable

import tensorflow as tf

from keras_vit.image_decoding import (
    JPEG_END,
    cut_window,
    decode_window,
    turn_upright,
)
from trainers.data.bad_examples import BadExampleError, BadExamples
from trainers.data.datasets import ImageDataset

# Decoded images of a split that are kept in memory, in bytes.
CACHE_BYTES = 2**28

# No function here has Python's control flow over tensors; to look for it would
# take most of the time of building a pipeline.
as_written = tf.autograph.experimental.do_not_convert


def fits_into_memory(dataset: ImageDataset) -> bool:
    """Return whether the decoded images to train on are few enough to keep."""
    shape = dataset.reader.image_shape
    if None in shape:
        return False  # Their sizes are unknown, and together too large.
    num_examples = dataset.num_examples(dataset.train_split)
    return num_examples * math.prod(shape) <= CACHE_BYTES


def make_decode(
    dataset: ImageDataset, bad_examples: BadExamples | None = None
) -> Callable:
    """Return the function that decodes an example and survives a bad one.

    Shapes:
        The function takes (stored, label, name, pick_window=None) and returns
        the image (H, W, C) or the window of it that is picked, the label and
        1.0; or zeros, the label and 0.0.

    Args:
        dataset: Where the examples come from.
        bad_examples: Is told the bad ones; None lets errors pass.
    """
    shape = dataset.reader.image_shape
    attempt = _run if bad_examples is None else _attempt

    def report(name):
        try:
            bad_examples.report(name.decode("utf-8", "replace"))
        except BadExampleError:
            return False  # Raised here, TensorFlow would log its traceback.
        return True

    def replace(name):
        is_allowed = tf.numpy_function(report, [name], tf.bool)
        check = tf.debugging.Assert(is_allowed, [name, "cannot be read"])
        with tf.control_dependencies([check]):
            return tf.zeros([size or 1 for size in shape], tf.uint8)

    def decode(stored, label, name, pick_window=None):
        if pick_window is None:
            image = _decode_whole(dataset.reader, stored, attempt)
        else:
            image = _decode_window(dataset.reader, stored, attempt, pick_window)
        if bad_examples is None:
            return image, label, tf.ones(())
        is_good = tf.size(image) > 0
        image = tf.cond(is_good, lambda: image, lambda: replace(name))
        if pick_window is None:
            image = tf.ensure_shape(image, shape)
        return image, label, tf.cast(is_good, tf.float32)

    return decode


def _decode_whole(reader, stored, attempt):
    """Return the upright image (H, W, C) of a stored example."""

    def decode(stored):
        encoded = reader.fetch(stored)
        return reader.decode(encoded), encoded

    return _turn(reader, *attempt(decode, stored, reader.image_shape[-1]))


def _decode_window(reader, stored, attempt, pick_window):
    """Return the upright window of an image, decoding no more if possible."""
    channels = reader.image_shape[-1]

    def decode_part(stored):
        encoded = reader.fetch(stored)
        return decode_window(encoded, pick_window, channels), encoded

    def decode_and_cut(stored):
        encoded = reader.fetch(stored)
        image = reader.decode(encoded)
        return cut_window(image, pick_window(tf.shape(image))), encoded

    # Whether the file is whole does not show in a part of it: a file without
    # the end of a JPEG, or one that is no JPEG, is decoded as a whole.
    image, encoded = _attempt(decode_part, stored, channels)
    image, encoded = tf.cond(
        tf.strings.substr(encoded, -2, 2) == JPEG_END,
        lambda: (image, encoded),
        lambda: attempt(decode_and_cut, stored, channels),
    )
    return _turn(reader, image, encoded)


def _turn(reader, image, encoded):
    return turn_upright(image, encoded) if reader.has_exif else image


def _run(function, stored, channels):
    return function(stored)


def _attempt(function, stored, channels):
    """Return what `function` gives, or an image without pixels if it fails.

    Inside a graph only a data set can catch an error. It takes about 0.1 ms
    and more for each operation in `function`.
    """
    nothing = tf.zeros((0, 0, channels), tf.uint8), tf.constant(b"none")
    good = tf.data.Dataset.from_tensors(stored).map(as_written(function))
    both = good.ignore_errors().concatenate(
        tf.data.Dataset.from_tensors(nothing)
    )
    return both.take(1).get_single_element()
