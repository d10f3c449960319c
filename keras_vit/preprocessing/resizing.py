"""The steps of a `description`, computed in a TensorFlow graph."""

import functools
from collections.abc import Iterable, Mapping

import tensorflow as tf

from keras_vit.preprocessing.description import LONGEST


def _resize_bicubic(image, image_size):
    image = tf.image.resize(image, image_size, "bicubic", antialias=True)
    return tf.clip_by_value(image, 0.0, 255.0)  # It overshoots.


# Each takes an image (..., H, W, C) and its new size, and returns floats.
METHODS = {
    "antialias": functools.partial(tf.image.resize, antialias=True),
    "area": functools.partial(tf.image.resize, method="area"),
    "bicubic": _resize_bicubic,
    "bilinear": tf.image.resize,
}
# Of an answer for each pixel, such as its class, nothing is mixed.
RESIZERS = {
    **METHODS,
    "nearest": functools.partial(tf.image.resize, method="nearest"),
}


def apply_steps(image: tf.Tensor, steps: Iterable[Mapping]) -> tf.Tensor:
    """Return an image after steps; see `description`.

    Shapes:
        image: (H, W, C), pixels from 0 to 255. returns: (H', W', C), floats.
    """
    for step in steps:
        image = STEPS[step["kind"]](image, step)
    return image


def _resize(image, step):
    size = step["height"], step["width"]
    return RESIZERS[step["method"]](image, size)


def _resize_to_cover(image, step):
    image = _cut_long(image)
    height, width = tf.unstack(tf.shape(image)[:2])
    rows, columns = step["height"], step["width"]
    size = tf.cond(
        height * columns >= width * rows,
        lambda: (tf.maximum(columns * height // width, rows), columns),
        lambda: (rows, tf.maximum(rows * width // height, columns)),
    )
    return RESIZERS[step["method"]](image, tf.stack(size))


def _resize_small(image, step):
    image = _cut_long(image)
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    size = tf.round(sides * (step["size"] / tf.reduce_min(sides)))
    method = RESIZERS[step.get("method", "area")]
    return method(image, tf.cast(size, tf.int32))


def _central_crop(image, step):
    size = step["height"], step["width"]
    words = f"central_crop takes images of {size[0]} x {size[1]} pixels or more"
    shape = tf.shape(image)
    check = tf.debugging.Assert(
        tf.reduce_all(shape[:2] >= size), [words, "Received:", shape]
    )
    with tf.control_dependencies([check] if check is not None else []):
        start = (shape[:2] - size) // 2
    return tf.slice(image, tf.concat([start, [0]], 0), (*size, image.shape[-1]))


def _cut_long(image):
    height, width = tf.unstack(tf.shape(image)[:2])
    size = tf.minimum([height, width], [LONGEST * width, LONGEST * height])
    start = tf.concat([([height, width] - size) // 2, [0]], 0)
    part = tf.slice(image, start, tf.concat([size, [image.shape[-1]]], 0))
    return tf.ensure_shape(part, (None, None, image.shape[-1]))


STEPS = {
    "resize": _resize,
    "resize_to_cover": _resize_to_cover,
    "resize_small": _resize_small,
    "central_crop": _central_crop,
}
