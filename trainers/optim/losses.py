"""Losses and hits of logits, one number per image."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from keras import ops


class Loss(NamedTuple):
    """A row of LOSSES.

    Args:
        function: Maps labels (B, C) and logits (B, C) to losses (B,).
        activation: The function that turns the logits of a model trained with
            this loss into probabilities: a key of
            `keras_vit.models.features.CLASSIFIER_ACTIVATIONS`.
    """

    function: Callable
    activation: str


def softmax(labels, logits):
    """Return the cross-entropy of a distribution over classes.

    Shapes:
        labels: (B, C), soft or not. logits: (B, C). returns: (B,).

    Example:
        >>> float(softmax(np.array([[1.0, 0.0]]), np.zeros((1, 2)))[0])
        0.693147...
    """
    return -ops.sum(labels * ops.log_softmax(logits), axis=-1)


def sigmoid(labels, logits):
    """Return the sum over the classes of their binary cross-entropies.

    Shapes:
        labels: (B, C), each entry in [0, 1]. logits: (B, C). returns: (B,).

    Reference: big_vision, which trains on ImageNet-21k with this loss.
    """
    losses = ops.softplus(logits) - labels * logits  # (B, C)
    return ops.sum(losses, axis=-1)


def smooth_labels(labels, smoothing: float):
    """Distribute the share `smoothing` of a label equally over all classes.

    A loss is minimal if the model predicts the smoothed labels. With
    `softmax`, they are a distribution. With `sigmoid`, each class is separate,
    so the target probability of a wrong class is smoothing / C instead of 0.

    Shapes:
        labels: (B, C), each row summing to 1. returns: (B, C), likewise.
    """
    return labels * (1.0 - smoothing) + smoothing / labels.shape[-1]


def is_best_class(labels, logits):
    """Return whether the predicted class has the largest label.

    Shapes:
        labels, logits: (B, C). returns: (B,), bools.
    """
    predictions = tf.argmax(logits, -1)
    chosen = tf.gather(labels, predictions, batch_dims=1)
    return chosen == tf.reduce_max(labels, -1)


LOSSES = {
    "softmax": Loss(softmax, activation="softmax"),
    "sigmoid": Loss(sigmoid, activation="sigmoid"),
}
