"""Figures of the evaluations during training, from sums over the images.

Sums, because they can be added over batches, devices and processes.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from keras import ops

from trainers.optim.losses import is_best_class


@dataclasses.dataclass(frozen=True)
class BalancedAccuracy:
    """The mean over the classes of the share of their images that is right.

    Args:
        num_classes: Number of classes.
    """

    num_classes: int
    name = "balanced_accuracy"

    @property
    def size(self) -> int:
        """How many numbers `measure` returns."""
        return 2 * self.num_classes

    def measure(self, labels, logits, weights):
        """Return the images of each class, and the right ones of them.

        Shapes:
            labels, logits: (B, C). weights: (B,), 0 for missing images.
            returns: (2 C,).
        """
        classes = ops.one_hot(ops.argmax(labels, -1), self.num_classes)
        hits = weights * ops.cast(is_best_class(labels, logits), "float32")
        sums = [ops.matmul(x, classes) for x in (weights, hits)]
        return ops.concatenate(sums)

    def report(self, sums: np.ndarray) -> float:
        """Return the figure of sums of `measure`."""
        images, hits = sums.reshape(2, -1)
        has_images = images > 0
        return float((hits[has_images] / images[has_images]).mean())


# Logits are counted in so many bins of equal width between these limits.
BINS, LIMIT = 4096, 16.0


@dataclasses.dataclass(frozen=True)
class MeanAveragePrecision:
    """The mean over the classes of their average precision.

    Of logits that are rounded to 1/128 and cut off at 16, where labels of equal
    logits share a threshold: an evaluation computes it without rounding.

    Args:
        num_classes: Number of classes.
    """

    num_classes: int
    name = "mean_average_precision"

    @property
    def size(self) -> int:
        """How many numbers `measure` returns."""
        return self.num_classes * BINS * 2

    def measure(self, labels, logits, weights):
        """Return how many labels of a class and logit are negative, positive.

        Shapes:
            labels: (B, C), NaN where unknown. logits: (B, C). weights: (B,), 0
            for missing images. returns: (C x BINS x 2,).
        """
        is_known = labels == labels
        is_positive = ops.cast(ops.where(is_known, labels, 0.0) > 0.5, "int32")
        places = (logits + LIMIT) * (BINS / (2 * LIMIT))
        places = ops.clip(places, 0, BINS - 1)  # NaN is found in the loss.
        places = ops.cast(ops.nan_to_num(places), "int32")
        classes = ops.arange(self.num_classes, dtype="int32")
        places = ((classes * BINS) + places) * 2 + is_positive
        counts = weights[:, None] * ops.cast(is_known, "float32")
        return ops.segment_sum(
            ops.reshape(counts, (-1,)),
            ops.reshape(places, (-1,)),
            num_segments=self.size,
        )

    def report(self, sums: np.ndarray) -> float:
        """Return the figure of sums of `measure`; 0 without positive labels."""
        counts = sums.reshape(self.num_classes, BINS, 2)[:, ::-1]
        positives = counts[..., 1].sum(-1)
        has_positives = positives > 0
        if not has_positives.any():
            return 0.0
        passed = counts[has_positives].cumsum(1)
        gained = counts[has_positives, :, 1] / positives[has_positives, None]
        precisions = passed[..., 1] / np.maximum(passed.sum(-1), 1)
        return float((gained * precisions).sum(-1).mean())


# Accuracy is highest for models that never answer rare classes.
FIGURES = (
    *("val_mean_average_precision", "val_balanced_accuracy", "val_accuracy"),
)


def name_best(logs: Mapping[str, float]) -> str | None:
    """Return by which figure of an evaluation the best one is chosen."""
    return next((name for name in FIGURES if name in logs), None)
