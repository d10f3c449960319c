"""Resizing and cropping images in a TensorFlow graph."""

import functools
from collections.abc import Iterable, Mapping

import tensorflow as tf

from keras_vit.preprocessing.steps import LONGEST


def resize_image(
    image: tf.Tensor, image_size: tuple[int, int], method: str
) -> tf.Tensor:
    """Return an image of another size, ignoring its aspect ratio.

    Shapes:
        image: (..., H, W, C). returns: (..., height, width, C), floats.

    Args:
        image: The image.
        image_size: (height, width).
        method: A key of METHODS.
    """
    return METHODS[method](image, image_size)


def _resize_bicubic(image, image_size):
    image = tf.image.resize(image, image_size, "bicubic", antialias=True)
    return tf.clip_by_value(image, 0.0, 255.0)  # It overshoots.


def resize_short_side(image: tf.Tensor, size: int) -> tf.Tensor:
    """Return an image whose short side is `size`.

    Each pixel is the mean of the area that it covers, as in the official code.

    Shapes:
        image: (H, W, C), floats. returns: (H', W', C).

    Args:
        image: The image.
        size: The short side, in pixels.
    """
    image = cut_long(image)
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    target = tf.round(sides * (size / tf.reduce_min(sides)))
    target = tf.cast(target, tf.int32)
    return resize_image(image, target, "area")


def cover_size(
    image: tf.Tensor, image_size: tuple[int, int], method: str
) -> tf.Tensor:
    """Return the smallest resized image that covers a rectangle.

    The aspect ratio is kept. See `steps.resized_size` for the size.

    Shapes:
        image: (H, W, C). returns: (H', W', C), floats.

    Args:
        image: The image.
        image_size: (height, width) of the rectangle.
        method: A key of METHODS.
    """
    image = cut_long(image)
    height, width = tf.unstack(tf.shape(image)[:2])
    rows, columns = image_size
    is_tall = height * columns >= width * rows
    size = tf.cond(
        is_tall,
        lambda: (tf.maximum(columns * height // width, rows), columns),
        lambda: (rows, tf.maximum(rows * width // height, columns)),
    )
    return resize_image(image, tf.stack(size), method)


def crop_middle(image: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Return the middle of an image.

    Shapes:
        image: (H, W, C). returns: (height, width, C).

    Args:
        image: The image, not smaller than the result.
        image_size: (height, width) of the result.
    """
    start = (tf.shape(image)[:2] - image_size) // 2
    start = tf.concat([start, [0]], 0)
    return tf.slice(image, start, (*image_size, image.shape[-1]))


def cut_long(image: tf.Tensor) -> tf.Tensor:
    """Return the middle of an image that is very long, see LONGEST."""
    height, width = tf.unstack(tf.shape(image)[:2])
    size = tf.minimum([height, width], [LONGEST * width, LONGEST * height])
    start = tf.concat([([height, width] - size) // 2, [0]], 0)
    part = tf.slice(image, start, tf.concat([size, [image.shape[-1]]], 0))
    return tf.ensure_shape(part, (None, None, image.shape[-1]))


def apply_steps(image: tf.Tensor, steps: Iterable[Mapping]) -> tf.Tensor:
    """Return an image after steps; see `steps`.

    Shapes:
        image: (H, W, C), pixels from 0 to 255. returns: (H', W', C), floats.

    Args:
        image: The image, upright.
        steps: The steps.
    """
    for step in steps:
        image = OF_STEPS[step["kind"]](image, step)
    return image


def _size_of(step):
    return step["height"], step["width"]


OF_STEPS = {
    "resize": lambda image, step: resize_image(
        image, _size_of(step), step["method"]
    ),
    "resize_to_cover": lambda image, step: cover_size(
        image, _size_of(step), step["method"]
    ),
    "resize_small": lambda image, step: resize_short_side(image, step["size"]),
    "central_crop": lambda image, step: crop_middle(image, _size_of(step)),
}
# Each takes an image and its new size, and returns floats.
METHODS = {
    "antialias": functools.partial(tf.image.resize, antialias=True),
    "area": functools.partial(tf.image.resize, method="area"),
    "bicubic": _resize_bicubic,
    "bilinear": tf.image.resize,
}
