"""Accuracy, loss and calibration of predictions. Pure NumPy."""

import dataclasses

import numpy as np

from keras_vit.tables import pick

TOP = 5
NUM_BINS = 15


def score_predictions(
    logits: np.ndarray, truths: np.ndarray, activation: str = "softmax"
) -> dict[str, np.ndarray]:
    """Compare the prediction for each image with its right classes.

    An image may have several right classes, as in ImageNet-ReaL. A prediction
    is right if it is one of them.

    Shapes:
        logits: (B, C), finite. truths: (B, C), True for the right classes.
        returns: (B,) each.

    Args:
        logits: Logits of the images.
        truths: Right classes of the images.
        activation: The function that turns logits into probabilities: a key
            of LIKELIHOODS.

    Returns:
        accuracy: Whether the class with the highest logit is right. Of equal
            logits, the first is used.
        top5_accuracy: Whether one of the five highest logits is right.
        loss: Loss in nats. With softmax, -log of the total probability of the
            right classes, which is the cross-entropy for one right class.
            With sigmoid, the sum of the binary cross-entropies of the classes.
        confidence: The highest probability.

    Raises:
        ValueError: If the activation is unknown.

    Reference: Beyer et al. 2020, arXiv:2006.07159, on several right classes.

    Example:
        >>> truths = np.array([[True, True, False]])
        >>> row = score_predictions(np.array([[0.0, 1, 0]]), truths)
        >>> row["accuracy"], row["confidence"].round(3)
        (array([ True]), array([0.576]))
    """
    likelihood = pick(LIKELIHOODS, activation, "activation")
    logits = logits.astype("float64")
    highest = np.argsort(-logits, axis=-1, kind="stable")[:, :TOP]
    hits = np.take_along_axis(truths, highest, axis=-1)  # (B, 5)
    losses, log_probabilities = likelihood(logits, truths)
    return {
        "accuracy": hits[:, 0],
        "top5_accuracy": hits.any(-1),
        "loss": losses,
        "confidence": np.exp(log_probabilities.max(-1)),
    }


def softmax_likelihood(
    logits: np.ndarray, truths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return losses (B,) and log-probabilities (B, C) of one distribution."""
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    right = np.where(truths, logs, -np.inf)
    return -np.logaddexp.reduce(right, axis=-1), logs


def sigmoid_likelihood(
    logits: np.ndarray, truths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return losses (B,) and log-probabilities (B, C) of separate classes."""
    logs = -np.logaddexp(0.0, -logits)
    losses = np.logaddexp(0.0, logits) - truths * logits  # (B, C)
    return losses.sum(-1), logs


def calibration_error(confidence: np.ndarray, hits: np.ndarray) -> float:
    """Return the expected calibration error, over 15 bins of equal width.

    The error is the difference between the confidence of predictions and their
    accuracy: the sum over bins of n_bin / n * |accuracy - confidence|.

    Shapes:
        confidence, hits: (N,).

    Args:
        confidence: Probabilities of the predicted classes.
        hits: Whether the predictions are right.

    Reference: Guo et al. 2017, arXiv:1706.04599, eq. 3.
    """
    bins = np.ceil(confidence * NUM_BINS).astype(int) - 1
    gaps = np.bincount(
        np.clip(bins, 0, NUM_BINS - 1), weights=hits - confidence
    )
    return float(np.abs(gaps).sum() / len(hits))


@dataclasses.dataclass
class Tally:
    """Accumulates the scores of `score_predictions` over batches.

    Args:
        class_names: Names of the C classes, in the order of the logits.
        activation: See `score_predictions`.
    """

    class_names: list[str]
    activation: str = "softmax"

    def __post_init__(self):
        self._rows = []
        self._class_hits, self._class_images = np.zeros(
            (2, len(self.class_names))
        )

    def add(self, logits: np.ndarray, truths: np.ndarray) -> np.ndarray:
        """Add a batch; return which of its predictions are right.

        Shapes:
            logits: (B, C), finite. truths: (B, C), True for the right classes.
            returns: (B,).
        """
        row = score_predictions(logits, truths, self.activation)
        self._rows.append(row)
        self._class_hits += truths[row["accuracy"]].sum(0)
        self._class_images += truths.sum(0)
        return row["accuracy"]

    def report(self) -> dict[str, float | int]:
        """Return the metrics over all images; at least one is required.

        Returns:
            num_examples: Number of images.
            accuracy, top5_accuracy, loss: Means of the scores; the second only
                for more than five classes.
            calibration_error: See `calibration_error`.
            accuracy/CLASS: Accuracy on the images of a class.
        """
        columns = {
            name: np.concatenate([row[name] for row in self._rows])
            for name in self._rows[0]
        }
        confidence, hits = columns.pop("confidence"), columns["accuracy"]
        if len(self.class_names) <= TOP:
            del columns["top5_accuracy"]
        return {
            "num_examples": len(hits),
            **{name: float(column.mean()) for name, column in columns.items()},
            "calibration_error": calibration_error(confidence, hits),
            **{
                f"accuracy/{name}": float(hits / images)
                for name, hits, images in zip(
                    self.class_names, self._class_hits, self._class_images
                )
                if images
            },
        }


LIKELIHOODS = {"softmax": softmax_likelihood, "sigmoid": sigmoid_likelihood}
