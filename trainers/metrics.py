"""How right the answers of a model are. Pure NumPy."""

import numpy as np

TOP = 5
NUM_BINS = 15


def judge(logits: np.ndarray, truths: np.ndarray) -> dict[str, np.ndarray]:
    """Say of each image how right the model is.

    An image may have several right classes, as in ImageNet-ReaL: an answer
    is right if it is one of them, and the loss is -log of the probability
    that they have together. With one class that is the cross-entropy.

    Shapes:
        logits: (B, C), finite. truths: (B, C), True for the right classes.
        returns: (B,) each.

    Returns:
        accuracy: Whether the highest logit is right; the first of equals.
        top5_accuracy: Whether one of the five highest is.
        loss: In nats.
        confidence: The highest probability.

    Reference: Beyer et al. 2020, arXiv:2006.07159, on several right classes.

    Example:
        >>> truths = np.array([[True, True, False]])
        >>> row = judge(np.array([[0.0, 1, 0]]), truths)
        >>> row["accuracy"], row["confidence"].round(3)
        (array([ True]), array([0.576]))
    """
    logits = logits.astype("float64")
    highest = np.argsort(-logits, axis=-1, kind="stable")[:, :TOP]
    hits = np.take_along_axis(truths, highest, axis=-1)  # (B, 5)
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    right = np.where(truths, logs, -np.inf)
    return {
        "accuracy": hits[:, 0],
        "top5_accuracy": hits.any(-1),
        "loss": -np.logaddexp.reduce(right, axis=-1),
        "confidence": np.exp(logs.max(-1)),
    }


def calibration_error(confidence: np.ndarray, hits: np.ndarray) -> float:
    """Return the expected calibration error, over 15 bins of equal width.

    How far the confidence of an answer is from the share of answers of that
    confidence that are right: sum over bins of n_bin / n * |hits - confidence|.

    Shapes:
        confidence, hits: (N,).

    Args:
        confidence: Probabilities of the answers.
        hits: Whether they are right.

    Reference: Guo et al. 2017, arXiv:1706.04599, eq. 3.
    """
    bins = np.ceil(confidence * NUM_BINS).astype(int) - 1
    gaps = np.bincount(
        np.clip(bins, 0, NUM_BINS - 1), weights=hits - confidence
    )
    return float(np.abs(gaps).sum() / len(hits))
