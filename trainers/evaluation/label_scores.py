"""Scores of models that give an image any number of labels. Pure NumPy.

A label of an image is 1 (it has it), 0 (it does not) or NaN (nobody knows);
unknown labels count nowhere. The model gives each label a probability of its
own, and decides by a threshold for each class.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from trainers.data.labels import DEFAULT_THRESHOLD, parse_goal
from trainers.evaluation.scores import (
    MOST_CLASSES,
    Bin,
    calibration_bins,
    calibration_error,
    wilson_interval,
)


def rank_rows(
    scores: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort each row by its scores and count what scores at least as high.

    Shapes:
        scores, labels, returns: (R, N) each.

    Returns:
        positives: Whether the entries of the sorted row are positive.
        hits: Number of positives with at least the score of the entry.
        ranks: Number of known entries with at least this score; of an unknown
            entry, and those are last, more.
    """
    scores = np.where(np.isnan(labels), -np.inf, scores)
    order = np.argsort(-scores, axis=-1, kind="stable")
    scores = np.take_along_axis(scores, order, axis=-1)
    positives = np.take_along_axis(labels, order, axis=-1) == 1
    last = scores.shape[-1] - 1
    # Equal scores are one threshold: all have the place of their last one.
    places = np.full(scores.shape, last)
    is_end = scores[:, 1:] != scores[:, :-1]
    places[:, :-1] = np.where(is_end, np.arange(last), last)
    places = np.minimum.accumulate(places[:, ::-1], axis=-1)[:, ::-1]
    hits = np.take_along_axis(np.cumsum(positives, -1), places, axis=-1)
    return positives, hits, places + 1


def average_precisions(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the average precision of each row.

    It is the mean over the positives of the precision among all that scores
    at least as high. Equal scores are one threshold.

    Shapes:
        scores: (R, N), higher for what is more likely. labels: (R, N), 1, 0 or
        NaN. returns: (R,), NaN for rows without a positive.

    Example:
        >>> scores = np.array([[0.9, 0.8, 0.1]])
        >>> average_precisions(scores, np.array([[1.0, 0, 1]])).round(3)
        array([0.833])
    """
    positives, hits, ranks = rank_rows(scores, labels)
    with np.errstate(invalid="ignore"):
        return (positives * hits / ranks).sum(-1) / positives.sum(-1)


def mean_average_precision(
    scores: np.ndarray, labels: np.ndarray, average: str = "macro"
) -> float:
    """Return the mean of the average precisions; NaN without positives.

    Shapes:
        scores, labels: (N, C).

    Args:
        scores: Probabilities or logits; logits have fewer ties.
        labels: 1, 0 or NaN.
        average: "macro" is the mean over the classes that have positives and
            negatives, as nothing can be ranked without; "micro" the average
            precision of all labels as one class.
    """
    if average == "micro":
        return float(
            average_precisions(scores.ravel()[None], labels.ravel()[None])[0]
        )
    found = average_precisions(scores.T, labels.T)
    found = found[~np.isnan(found) & (labels == 0).any(0)]
    return float(found.mean()) if len(found) else float("nan")


def ranking_scores(
    scores: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Return how well the labels of each image are ranked, without thresholds.

    Shapes:
        scores, labels: (N, C). returns: (N,) each.

    Returns:
        label_ranking_average_precision: The average precision of the image; 1
            if it has no label.
        coverage_error: Number of labels, the most probable first, that include
            all labels of the image.
        ranking_loss: Share of the pairs of a label that the image has and one
            that it has not whose order is wrong, or whose scores are equal.

    Reference: Tsoumakas, Katakis and Vlahavas 2010, "Mining multi-label data".
        The conventions are those of scikit-learn.
    """
    positives, hits, ranks = rank_rows(scores, labels)
    num_positives = positives.sum(-1)
    num_pairs = num_positives * (labels == 0).sum(-1)
    wrong = (positives * (ranks - hits)).sum(-1)
    precisions = (positives * hits / ranks).sum(-1)
    return {
        "label_ranking_average_precision": np.where(
            num_positives, precisions / np.maximum(num_positives, 1), 1.0
        ),
        "coverage_error": (positives * ranks).max(-1),
        "ranking_loss": wrong / np.maximum(num_pairs, 1),
    }


def sigmoid_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the sums of the binary cross-entropies of the known labels.

    Shapes:
        logits, labels: (N, C). returns: (N,), in nats.
    """
    losses = np.logaddexp(0.0, logits) - np.nan_to_num(labels) * logits
    return np.where(np.isnan(labels), 0.0, losses).sum(-1)


def find_mistakes(
    decisions: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which labels are given falsely, and which ones are missed.

    Shapes:
        decisions, labels, returns: (..., C) each.

    Args:
        decisions: Whether the labels are given.
        labels: 1, 0 or NaN.
    """
    return decisions & (labels == 0), ~decisions & (labels == 1)


def choose_thresholds(
    probabilities: np.ndarray, labels: np.ndarray, goal: str = "f1"
) -> list[float]:
    """Return the threshold of each class that serves a goal best.

    A threshold lies midway between two probabilities of these images, so that
    rounding turns no decision on them. A class without positives gets 0.5.

    Shapes:
        probabilities, labels: (N, C).

    Args:
        probabilities: From 0 to 1.
        labels: 1, 0 or NaN.
        goal: "f1" for the highest F1, or "precision:0.9" for the lowest
            threshold whose precision is at least that; if there is none, that
            of the highest precision. Of equally good ones, the highest
            threshold for F1 and the lowest for a precision.

    Raises:
        ValueError: If the goal is another one.

    Example:
        >>> probabilities = np.array([[0.9], [0.7], [0.3]])
        >>> choose_thresholds(probabilities, np.array([[1.0], [1], [0]]))
        [0.5]
    """
    precision = parse_goal(goal)
    return [
        _choose(*column, precision)
        for column in zip(
            np.asarray(probabilities, "float64").T, np.asarray(labels).T
        )
    ]


def _choose(probabilities, labels, precision):
    """Return the threshold of one class."""
    positives, hits, ranks = rank_rows(probabilities[None], labels[None])
    known = np.sort(probabilities[~np.isnan(labels)])[::-1]
    total = positives.sum()
    if not total:
        return DEFAULT_THRESHOLD
    hits, ranks = hits[0, : len(known)], ranks[0, : len(known)]
    if precision is None:
        best = np.argmax(2 * hits / (ranks + total))
    else:
        reached = hits / ranks
        wanted = min(precision, reached.max())
        best = np.flatnonzero(reached >= wanted)[-1]
    cut = ranks[best]  # So many are taken, and the next one is not.
    below = known[cut] if cut < len(known) else 0.0
    return float((known[cut - 1] + below) / 2)


@dataclasses.dataclass
class LabelTally:
    """Accumulates the scores of several labels, with the interface of `Tally`.

    Args:
        class_names: Names of the C classes, in the order of the logits.
        thresholds: Of each class, a probability; None for 0.5.
    """

    class_names: list[str]
    thresholds: Sequence[float] | None = None
    activation = "sigmoid"

    def __post_init__(self):
        if self.thresholds is None:
            self.thresholds = [DEFAULT_THRESHOLD] * len(self.class_names)
        self._batches = []
        # How often an image with the label of the row was falsely given that
        # of the column.
        self.confusion = None
        if len(self.class_names) <= MOST_CLASSES:
            self.confusion = np.zeros((len(self.class_names),) * 2, int)

    def add(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Add a batch; return for which images all known labels are right.

        Shapes:
            logits: (B, C), finite. labels: (B, C), 1, 0 or NaN.
            returns: (B,).
        """
        self._batches.append((logits, labels))
        decisions = self.decide(sigmoid(logits))
        alarms, missed = find_mistakes(decisions, labels)
        if self.confusion is not None:
            present = (labels == 1).astype(int)
            self.confusion += present.T @ alarms.astype(int)
        return ~(alarms | missed).any(-1)

    def decide(self, probabilities: np.ndarray) -> np.ndarray:
        """Return which labels are given to images.

        Shapes:
            probabilities, returns: (B, C).
        """
        return probabilities >= np.asarray(self.thresholds)

    def report(self) -> dict[str, float | int]:
        """Return the metrics over all images that have a known label.

        Returns:
            num_examples: Number of these images.
            mean_average_precision, mean_average_precision_micro: See
                `mean_average_precision`.
            macro_f1: Mean F1 of the classes that have positives.
            micro_f1: F1 of all decisions together.
            exact_match, exact_match_low, exact_match_high: Share of the images
                whose known labels are all right, with its 95 % interval.
            label_ranking_average_precision, coverage_error, ranking_loss: Means
                of the `ranking_scores`.
            loss: Mean of the `sigmoid_losses`.
            calibration_error: Of the probabilities of all known labels, which
                should be the share of images that have them.
            threshold/CLASS: Probability from which an image gets the label.
            positives/CLASS: Number of images that have the label.
            images/CLASS: Number of images of which it is known.
            average_precision/CLASS: See `average_precisions`.
            precision/CLASS, recall/CLASS, f1/CLASS: At the threshold. Each has
                a 95 % interval, `precision_low/CLASS` to
                `precision_high/CLASS` and so on. The precision needs a
                prediction; the others, and the average precision, a positive.

        Raises:
            ValueError: If no image has a label.
        """
        logits, labels = self._known()
        if not (labels == 1).any():
            raise ValueError(
                "`dataset` must have images with a label. Received: "
                f"{len(labels)} images without any"
            )
        probabilities = sigmoid(logits)
        decisions, truths = self.decide(probabilities), labels == 1
        is_known = ~np.isnan(labels)
        hits = (decisions & truths).sum(0)
        predicted = (decisions & is_known).sum(0)
        positives = truths.sum(0)
        exact = (decisions == truths) | ~is_known
        num_exact = int(exact.all(-1).sum())
        low, high = wilson_interval(num_exact, len(labels))
        f1 = 2 * hits / np.maximum(predicted + positives, 1)
        ranking = ranking_scores(logits, labels)
        return {
            "num_examples": len(labels),
            "mean_average_precision": mean_average_precision(logits, labels),
            "mean_average_precision_micro": mean_average_precision(
                logits, labels, "micro"
            ),
            "macro_f1": float(f1[positives > 0].mean()),
            "micro_f1": float(
                2 * hits.sum() / (predicted.sum() + positives.sum())
            ),
            "exact_match": num_exact / len(labels),
            "exact_match_low": low,
            "exact_match_high": high,
            **{name: float(values.mean()) for name, values in ranking.items()},
            "loss": float(sigmoid_losses(logits, labels).mean()),
            "calibration_error": calibration_error(*self._certainty()),
            **self._report_classes(logits, labels, hits, predicted),
        }

    def bins(self) -> list[Bin]:
        """Return the `calibration_bins` of the probabilities of all labels."""
        return calibration_bins(*self._certainty())

    def curves(self) -> dict[str, np.ndarray]:
        """Return nothing: of several labels, no image is refused."""
        return {}

    def _certainty(self):
        """Return probabilities and truths of all known labels."""
        logits, labels = self._known()
        is_known = ~np.isnan(labels)
        return sigmoid(logits[is_known]), labels[is_known]

    def _known(self):
        """Return logits and labels of the images with a known label."""
        logits, labels = map(np.concatenate, zip(*self._batches))
        is_counted = ~np.isnan(labels).all(-1)
        return logits[is_counted].astype("float64"), labels[is_counted]

    def _report_classes(self, logits, labels, hits, predicted):
        """Return the metrics of each class."""
        found = {}
        precisions = average_precisions(logits.T, labels.T)
        positives, known = (labels == 1).sum(0), (~np.isnan(labels)).sum(0)
        for index, name in enumerate(self.class_names):
            found |= {
                f"threshold/{name}": float(self.thresholds[index]),
                f"positives/{name}": int(positives[index]),
                f"images/{name}": int(known[index]),
            }
            counts = {"precision": predicted[index]}
            if positives[index]:
                found[f"average_precision/{name}"] = float(precisions[index])
                counts["recall"] = positives[index]
                counts["f1"] = positives[index] + predicted[index] - hits[index]
            for metric, count in counts.items():
                if count:
                    share = hits[index] / count
                    values = np.array(
                        [share, *wilson_interval(hits[index], count)]
                    )
                    # The share of hits among all that is positive or
                    # predicted determines F1, so its interval does as well.
                    if metric == "f1":
                        values = 2 * values / (1 + values)
                    for part, value in zip(("", "_low", "_high"), values):
                        found[f"{metric}{part}/{name}"] = float(value)
        return found


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the sigmoid of logits in float64, exact for large ones."""
    return np.exp(-np.logaddexp(0.0, -logits.astype("float64")))
