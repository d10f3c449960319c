"""Losses on logits: one number an image."""

import math

from keras import ops

from keras_vit.tables import pick


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
    """Give `smoothing` of the weight of a label to all classes alike.

    A loss is least where the model answers these labels. With `softmax` that
    is a distribution; with `sigmoid` each class by itself, so that a wrong one
    of C is driven to the probability smoothing / C instead of 0.

    Shapes:
        labels: (B, C), each row summing to 1. returns: (B, C), likewise.
    """
    return labels * (1.0 - smoothing) + smoothing / labels.shape[-1]


def initial_head_bias(loss: str, num_classes: int) -> float:
    """Return the bias that makes a head of kernel zero expect one class.

    With a bias of zero, sigmoids expect half of all classes in every image,
    and unlearning that is all that the first updates do. A softmax expects
    one class anyway.

    Args:
        loss: A key of LOSSES.
        num_classes: Outputs of the head.

    Raises:
        ValueError: If there is no such loss.

    Example:
        >>> round(initial_head_bias("sigmoid", 1000), 1)
        -6.9

    Reference: big_vision: -6.9 for ImageNet-1k, -10 for its 21,843 classes.
    """
    pick(LOSSES, loss, "loss")
    return -math.log(num_classes) if loss == "sigmoid" else 0.0


LOSSES = {"softmax": softmax, "sigmoid": sigmoid}
