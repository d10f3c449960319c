"""Exponential moving averages, computed without rounding them away."""

import math

import tensorflow as tf


def mix(mean, value, share):
    """Return (1 - share) * mean + share * value.

    The implemented form keeps the mean of equal values unchanged, although the
    two rounded factors do not sum to 1.
    """
    return mean + share * (value - mean)


def mass(decay, count):
    """Return 1 - decay^count, the sum of the weights of `count` values.

    Accurate even if the power is near 1, as with a decay of 0.9999.
    """
    return -tf.math.expm1(count * math.log(decay))
