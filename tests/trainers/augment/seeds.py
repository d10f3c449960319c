"""Operations, and their results for many seeds."""

import numpy as np
import tensorflow as tf

from trainers.augment.augmentation import parse_augmentation

SIZE = (6, 8)


def image_operation(text, size=SIZE):
    return parse_augmentation(text, size).image


def over_seeds(function, count):
    """Return the arrays that a function of a seed gives for many seeds."""
    dataset = tf.data.Dataset.range(count).map(
        lambda i: function(tf.stack([np.int64(3), i])), num_parallel_calls=2
    )
    return list(dataset.as_numpy_iterator())
