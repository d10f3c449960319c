"""Losses on logits: one number an image."""

import keras
from keras import ops


def softmax(labels, logits):
    """Cross-entropy of a distribution over classes.

    Shapes:
        labels: (B, C), each row summing to 1. logits: (B, C). returns: (B,).

    Example:
        >>> float(softmax(np.array([[1.0, 0.0]]), np.zeros((1, 2)))[0])
        0.693147...
    """
    return keras.losses.categorical_crossentropy(
        labels, logits, from_logits=True
    )


def sigmoid(labels, logits):
    """Binary cross-entropies of the classes, summed over the classes.

    Shapes:
        labels: (B, C), each entry in [0, 1]. logits: (B, C). returns: (B,).

    Reference: big_vision, which trains on ImageNet-21k with it.
    """
    losses = ops.softplus(logits) - labels * logits  # (B, C)
    return ops.sum(losses, axis=-1)


def smooth_labels(labels, smoothing: float):
    """Give `smoothing` of the weight of a label to all classes alike.

    Shapes:
        labels: (B, C). returns: (B, C).
    """
    return labels * (1.0 - smoothing) + smoothing / labels.shape[-1]


LOSSES = {"softmax": softmax, "sigmoid": sigmoid}
