"""Losses on logits: one number for each image."""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops


class Loss(NamedTuple):
    """A row of LOSSES.

    Args:
        function: From labels (B, C) and logits (B, C) to losses (B,).
        activation: Turns the logits of a model that was trained with this
            loss into probabilities: a key of
            `keras_vit.models.features.CLASSIFIER_ACTIVATIONS`.
    """

    function: Callable
    activation: str


def softmax(labels, logits):
    """Cross-entropy of a distribution over classes.

    Shapes:
        labels: (B, C), soft or not. logits: (B, C). returns: (B,).

    Example:
        >>> float(softmax(np.array([[1.0, 0.0]]), np.zeros((1, 2)))[0])
        0.693147...
    """
    return -ops.sum(labels * ops.log_softmax(logits), axis=-1)


def sigmoid(labels, logits):
    """Binary cross-entropies of the classes, summed over the classes.

    Shapes:
        labels: (B, C), each entry in [0, 1]. logits: (B, C). returns: (B,).

    Reference: big_vision, which trains on ImageNet-21k with it.
    """
    losses = ops.softplus(logits) - labels * logits  # (B, C)
    return ops.sum(losses, axis=-1)


def smooth_labels(labels, smoothing: float):
    """Share `smoothing` of the weight of a label among all classes equally.

    A loss is least where the model predicts the smoothed labels. With
    `softmax` they are a distribution. With `sigmoid` each class counts by
    itself, so that a wrong class of C is driven to the probability
    smoothing / C instead of 0.

    Shapes:
        labels: (B, C), each row summing to 1. returns: (B, C), likewise.
    """
    return labels * (1.0 - smoothing) + smoothing / labels.shape[-1]


LOSSES = {
    "softmax": Loss(softmax, activation="softmax"),
    "sigmoid": Loss(sigmoid, activation="sigmoid"),
}
