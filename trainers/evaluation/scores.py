"""Accuracy, loss and calibration of predictions. Pure NumPy."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from keras_vit.known import KnownScore
from keras_vit.tables import pick

TOP = 5
NUM_BINS = 15
QUANTILE = 1.959964  # Of the normal distribution, for 95 %.
MOST_CLASSES = 2000  # With a confusion matrix.


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


def nearest_classes(logits: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """Return the right class of each image; of several, of the highest logit.

    Shapes:
        logits: (B, C). truths: (B, C), True for the right classes.
        returns: (B,).
    """
    return np.argmax(np.where(truths, logits, -np.inf), -1)


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
    gaps = [
        row.count * abs(row.accuracy - row.confidence)
        for row in calibration_bins(confidence, hits)
        if row.count
    ]
    return float(sum(gaps) / len(hits))


class Bin(NamedTuple):
    """The predictions of about one confidence.

    Args:
        count: Number of predictions.
        confidence, accuracy: Their means; NaN without predictions.
    """

    count: int
    confidence: float
    accuracy: float


def calibration_bins(confidence: np.ndarray, hits: np.ndarray) -> list[Bin]:
    """Return the predictions by confidence, in 15 bins of equal width.

    Shapes:
        confidence, hits: (N,).

    Args:
        confidence: Probabilities of the predicted classes.
        hits: Whether the predictions are right.
    """
    places = np.ceil(confidence * NUM_BINS).astype(int) - 1
    places = np.clip(places, 0, NUM_BINS - 1)
    counts, sums, rights = (
        np.bincount(places, weights=weights, minlength=NUM_BINS)
        for weights in (None, confidence, hits)
    )
    with np.errstate(invalid="ignore"):
        means, accuracies = sums / counts, rights / counts
    return [
        Bin(int(n), float(mean), float(accuracy))
        for n, mean, accuracy in zip(counts, means, accuracies)
    ]


def wilson_interval(num_hits: int, number: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share.

    Args:
        num_hits: How often something happened.
        number: How often it could have happened, at least once.

    Reference: Wilson 1927, doi:10.2307/2276774.

    Example:
        >>> low, high = wilson_interval(9, 10)
        >>> round(low, 3), round(high, 3)
        (0.596, 0.982)
    """
    share, scale = num_hits / number, QUANTILE**2 / number
    middle = (share + scale / 2) / (1 + scale)
    spread = share * (1 - share) * scale + scale**2 / 4
    half = math.sqrt(spread) / (1 + scale)
    return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclasses.dataclass
class Tally:
    """Accumulates the scores of `score_predictions` over batches.

    Args:
        class_names: Names of the C classes, in the order of the logits.
        activation: See `score_predictions`.
        known: Tells which images are known, by their scores.
    """

    class_names: list[str]
    activation: str = "softmax"
    known: KnownScore | None = None

    def __post_init__(self):
        self._rows = []
        num_classes = len(self.class_names)
        # For each class: its images, those with a right prediction, the
        # predictions of the class, and the right ones of them.
        self._images, self._hits, self._predicted, self._right = np.zeros(
            (4, num_classes)
        )
        self.confusion = None
        if num_classes <= MOST_CLASSES:
            self.confusion = np.zeros((num_classes, num_classes), int)

    def add(
        self,
        logits: np.ndarray,
        truths: np.ndarray,
        scores: np.ndarray | None = None,
    ) -> np.ndarray:
        """Add a batch; return which of its predictions are right.

        Shapes:
            logits: (B, C), finite. truths: (B, C), True for the right classes.
            scores: (B,), if there is a `known`. returns: (B,).
        """
        row = score_predictions(logits, truths, self.activation)
        if scores is not None:
            row["score"] = scores
        self._rows.append(row)
        predictions = np.argmax(logits, -1)
        is_right = row["accuracy"]
        self._hits += truths[is_right].sum(0)
        self._images += truths.sum(0)
        np.add.at(self._predicted, predictions, 1)
        np.add.at(self._right, predictions[is_right], 1)
        if self.confusion is not None:
            nearest = nearest_classes(logits, truths)
            np.add.at(self.confusion, (nearest, predictions), 1)
        return is_right

    def report(self) -> dict[str, float | int]:
        """Return the metrics over all images; at least one is required.

        Returns:
            num_examples: Number of images.
            accuracy, top5_accuracy, loss: Means of the scores; the second only
                for more than five classes.
            accuracy_low, accuracy_high: 95 % confidence interval of the
                accuracy, see `wilson_interval`.
            calibration_error: See `calibration_error`.
            known: Share of images that are known, of a calibrated model.
            accuracy_of_known: Their accuracy, if there are any.
            balanced_accuracy: Mean accuracy of the classes that have images.
            macro_f1: Mean F1 of these classes.
            baseline_accuracy: Accuracy of always answering the class with the
                most images.
            images/CLASS: Number of images of a class.
            accuracy/CLASS: Accuracy on the images of a class, its recall.
            accuracy_low/CLASS, accuracy_high/CLASS: Its 95 % interval.
            precision/CLASS: Accuracy of the predictions of a class.
            f1/CLASS: Harmonic mean of both.
        """
        columns = self._columns()
        confidence, hits = columns.pop("confidence"), columns["accuracy"]
        answered = {}
        if self.known is not None:
            is_known = self.known.is_known(columns.pop("score"))
            answered["known"] = float(is_known.mean())
            if is_known.any():
                answered["accuracy_of_known"] = float(hits[is_known].mean())
        if len(self.class_names) <= TOP:
            del columns["top5_accuracy"]
        low, high = wilson_interval(int(hits.sum()), len(hits))
        classes = self._report_classes()
        return {
            "num_examples": len(hits),
            **{name: float(column.mean()) for name, column in columns.items()},
            "accuracy_low": low,
            "accuracy_high": high,
            "calibration_error": calibration_error(confidence, hits),
            **answered,
            "balanced_accuracy": float(
                np.mean([*classes["accuracy"].values()])
            ),
            "macro_f1": float(np.mean([*classes["f1"].values()])),
            "baseline_accuracy": float(self._images.max() / len(hits)),
            **{
                f"{metric}/{name}": value
                for metric, values in classes.items()
                for name, value in values.items()
            },
        }

    def bins(self) -> list[Bin]:
        """Return the `calibration_bins` of all images."""
        columns = self._columns()
        return calibration_bins(columns["confidence"], columns["accuracy"])

    def curves(self) -> dict[str, np.ndarray]:
        """Return the accuracy of the images that fit best, for each number.

        Shapes:
            returns: (N,) each, for 1 to N images.

        Returns:
            The accuracies by what orders the images: "probability", and
            "score" of a calibrated model.
        """
        columns = self._columns()
        orders = {"probability": columns["confidence"]}
        if self.known is not None:
            orders["score"] = columns["score"]
        counts = np.arange(len(columns["accuracy"])) + 1
        return {
            name: np.cumsum(
                columns["accuracy"][np.argsort(-values, kind="stable")]
            )
            / counts
            for name, values in orders.items()
        }

    def _columns(self):
        return {
            name: np.concatenate([row[name] for row in self._rows])
            for name in self._rows[0]
        }

    def _report_classes(self):
        """Return the metrics of each class that has images or predictions."""
        found = {"images": {}, "accuracy": {}, "accuracy_low": {}}
        found |= {"accuracy_high": {}, "precision": {}, "f1": {}}
        rows = zip(
            self.class_names,
            *(self._images, self._hits, self._predicted, self._right),
        )
        for name, images, hits, predicted, right in rows:
            precision = right / predicted if predicted else 0.0
            if predicted:
                found["precision"][name] = float(precision)
            if images:
                recall = hits / images
                both = precision + recall
                f1 = 2 * precision * recall / both if both else 0.0
                low, high = wilson_interval(hits, images)
                found["images"][name] = int(images)
                found["accuracy"][name] = float(recall)
                found["accuracy_low"][name] = float(low)
                found["accuracy_high"][name] = float(high)
                found["f1"][name] = float(f1)
        return found


LIKELIHOODS = {"softmax": softmax_likelihood, "sigmoid": sigmoid_likelihood}
