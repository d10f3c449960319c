"""Masks of the rectangles that random erasing and CutMix replace."""

import tensorflow as tf


def mask_box(images: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Return whether each pixel (H, W) is inside a rectangle.

    Args:
        images: (..., H, W, C).
        start: (2,), floats: the first row and column.
        end: (2,), floats: the row and column after the last ones.
    """
    height, width = tf.unstack(tf.shape(images)[-3:-1])
    rows = tf.range(tf.cast(height, tf.float32))
    columns = tf.range(tf.cast(width, tf.float32))
    rows = (start[0] <= rows) & (rows < end[0])
    columns = (start[1] <= columns) & (columns < end[1])
    return rows[:, None] & columns
