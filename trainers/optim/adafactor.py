"""The update rule of Adafactor, as in big_vision."""

import tensorflow as tf

from trainers.optim.adam import adam_slots
from trainers.optim.means import mix


def adafactor(gradient, slots, numbers):
    """Divide by the root of a factored mean square, then take the mean.

    Only the row means and the column means of the mean square of a matrix are
    kept; their product, divided by the total mean, approximates it.

    Reference: Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4; Zhai et
        al. 2022, arXiv:2106.04560, section 3.
    Differs: As in big_vision, without clipping, without a rate relative to the
        weight, and without a correction for the initial mean of zero.
    """
    share1, share2 = numbers["share1"], numbers["share2"]
    square = tf.square(gradient) + numbers["epsilon"]
    axes = factored_axes(gradient.shape)
    if axes:
        row_axis, column_axis = axes
        rows = tf.reduce_mean(square, column_axis, keepdims=True)
        columns = tf.reduce_mean(square, row_axis, keepdims=True)
        rows = mix(slots["second_moment_rows"], rows, share2)
        columns = mix(slots["second_moment_columns"], columns, share2)
        new = {"second_moment_rows": rows, "second_moment_columns": columns}
        share = rows / tf.reduce_mean(rows, row_axis, keepdims=True)
        scaled = gradient * tf.math.rsqrt(share) * tf.math.rsqrt(columns)
    else:
        second = mix(slots["second_moment"], square, share2)
        new = {"second_moment": second}
        scaled = gradient * tf.math.rsqrt(second)
    first = mix(slots["first_moment"], scaled, share1)
    return first, {**new, "first_moment": first}


def adafactor_numbers(
    step, beta1=0.9, max_beta2=0.999, exponent=0.8, epsilon=1e-30
):
    """Return the share of the newest value in each mean, and epsilon."""
    beta2 = tf.minimum(max_beta2, 1 - (step + 1) ** -exponent)
    return {
        "share1": tf.constant(1 - beta1),
        "share2": 1 - beta2,
        "epsilon": tf.constant(epsilon),
    }


def adafactor_slots(shape):
    """Return the shapes of the first moment and of the parts of the second.

    Example:
        >>> adafactor_slots((64, 48))["second_moment_rows"]
        (64, 1)
    """
    axes = factored_axes(shape)
    if not axes:
        return adam_slots(shape)
    row_axis, column_axis = axes
    return {
        "first_moment": shape,
        "second_moment_rows": with_one(shape, column_axis),
        "second_moment_columns": with_one(shape, row_axis),
    }


def with_one(shape, axis):
    """Return the shape of a mean over `axis`, which keeps length 1."""
    return (*shape[:axis], 1, *shape[axis + 1 :])


def factored_axes(shape, min_size=32):
    """Return the two longest axes of a weight; None if one of them is short."""
    axes = sorted(range(len(shape)), key=lambda axis: shape[axis])[-2:]
    if len(axes) < 2 or shape[axes[0]] < min_size:
        return None
    return sorted(axes)
