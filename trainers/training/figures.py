"""Figures of the evaluations during training, from sums over the images.

Sums, because they can be added over batches, devices and processes.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from keras import ops

from trainers.optim.losses import is_best_class, split_unknown


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


# Logits between these limits are counted in bins of equal width, at most so
# many for a class, and for all classes together unless they get too wide.
LIMIT, MOST_BINS, LEAST_BINS, ALL_BINS = 16.0, 4096, 256, 2**21


@dataclasses.dataclass(frozen=True)
class MeanAveragePrecision:
    """The mean over the classes of their average precision.

    Of logits that are cut off at 16 and rounded, to 1/128 for up to 512
    classes, where labels of equal logits share a threshold: an evaluation
    computes it without rounding.

    Args:
        num_classes: Number of classes.
    """

    num_classes: int
    name = "mean_average_precision"

    @property
    def bins(self) -> int:
        """Number of bins of a class."""
        fitting = ALL_BINS // self.num_classes
        return min(max(fitting, LEAST_BINS), MOST_BINS)

    @property
    def size(self) -> int:
        """How many numbers `measure` returns."""
        return self.num_classes * self.bins * 2

    def measure(self, labels, logits, weights):
        """Return how many labels of a class and logit are negative, positive.

        Shapes:
            labels: (B, C), NaN where unknown. logits: (B, C). weights: (B,), 0
            for missing images. returns: (C x bins x 2,).
        """
        is_known, labels = split_unknown(labels)
        is_positive = ops.cast(labels > 0.5, "int32")
        places = (logits + LIMIT) * (self.bins / (2 * LIMIT))
        places = ops.clip(places, 0, self.bins - 1)  # NaN is found in the loss.
        places = ops.cast(ops.nan_to_num(places), "int32")
        classes = ops.arange(self.num_classes, dtype="int32")
        places = ((classes * self.bins) + places) * 2 + is_positive
        counts = weights[:, None] * ops.cast(is_known, "float32")
        return ops.segment_sum(
            ops.reshape(counts, (-1,)),
            ops.reshape(places, (-1,)),
            num_segments=self.size,
        )

    def report(self, sums: np.ndarray) -> float:
        """Return the figure of sums of `measure`; 0 without positive labels."""
        counts = sums.reshape(self.num_classes, self.bins, 2)[:, ::-1]
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
