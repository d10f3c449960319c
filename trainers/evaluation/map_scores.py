"""Figures of answers for each pixel: segmentation and depth, in NumPy."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.ndimage import distance_transform_edt

from trainers.training.map_objectives import (
    LEAST_DEPTH,
    intersection_over_union,
)

# Share of the diagonal by which a border may be off.
BORDER_SHARE = 0.0075
DELTA = 1.25


@dataclasses.dataclass
class SegmentTally:
    """Accumulates how well the classes of pixels were found.

    Args:
        class_names: Names of the C classes.
    """

    class_names: Sequence[str]
    score_name = "mean_iou"  # By which images are compared.
    is_higher_better = True

    def __post_init__(self):
        count = len(self.class_names)
        self.confusion = np.zeros((count, count), np.int64)
        self.rows = []

    def answer(self, outputs: np.ndarray, maps: np.ndarray) -> np.ndarray:
        """Return the classes (B, H, W) of logits (B, H, W, C)."""
        return outputs.argmax(-1)

    def add(self, answers: np.ndarray, maps: np.ndarray):
        """Add the answers for images.

        Shapes:
            answers: (B, H, W), classes. maps: (B, H, W), the right ones, NaN
            where unknown.
        """
        for answer, truth in zip(answers, maps):
            is_known = np.isfinite(truth)
            counts = count_pairs(
                truth[is_known].astype(int),
                answer[is_known],
                len(self.class_names),
            )
            self.confusion += counts
            self.rows.append(
                {
                    "mean_iou": float(
                        np.nanmean(intersection_over_union(counts))
                    ),
                    "pixel_accuracy": float(np.trace(counts) / counts.sum()),
                    "boundary_f1": boundary_f1(answer, truth),
                }
            )

    def report(self) -> dict[str, float | int]:
        """Return the figures over all images; at least one is required.

        Returns:
            num_examples: Number of images.
            mean_iou: Mean over the classes of their IoU: the pixels that are
                of the class and found, divided by those that are or were
                found, over all images. Classes without either do not count.
            pixel_accuracy: Share of the known pixels that are right.
            mean_accuracy: Mean over the classes of the share of their pixels
                that is found.
            boundary_f1: Mean over the images, see `boundary_f1`.
            iou/CLASS, accuracy/CLASS, precision/CLASS: Of a class.
            share/CLASS: Its share of the known pixels.
        """
        counts, total = self.confusion, self.confusion.sum()
        right, real, found = np.diagonal(counts), counts.sum(1), counts.sum(0)
        columns = {
            "iou": intersection_over_union(counts),
            "accuracy": _divide(right, real),
            "precision": _divide(right, found),
            "share": real / total,
        }
        borders = [row["boundary_f1"] for row in self.rows]
        borders = [x for x in borders if np.isfinite(x)]
        return {
            "num_examples": len(self.rows),
            "mean_iou": float(np.nanmean(columns["iou"])),
            "pixel_accuracy": float(right.sum() / total),
            "mean_accuracy": float(np.nanmean(columns["accuracy"])),
            **({"boundary_f1": float(np.mean(borders))} if borders else {}),
            **{
                f"{name}/{label}": float(value)
                for name, values in columns.items()
                for label, value in zip(self.class_names, values)
                if np.isfinite(value)
            },
        }


def count_pairs(
    truths: np.ndarray, answers: np.ndarray, num_classes: int
) -> np.ndarray:
    """Return how many pixels of a class got an answer, (C, C)."""
    places = truths * num_classes + answers
    counts = np.bincount(places.ravel(), minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def _divide(numbers, others):
    """Return quotients, NaN where others are 0."""
    return np.where(others > 0, numbers / np.maximum(others, 1), np.nan)


def boundary_f1(answer: np.ndarray, truth: np.ndarray) -> float:
    """Return how well the borders of the classes of an image were found.

    A pixel is on the border of its class if one of its four neighbours is of
    another class. Precision is the share of the border in the answer that is
    at most 0.75 % of the diagonal, and at least a pixel, away from the right
    border of the class; recall, the other way round. The result is the mean of
    F1 over the classes that have a border in either.

    Shapes:
        answer, truth: (H, W), classes; where the truth is NaN, nothing counts.
        returns: A number; NaN for images without any border.

    Reference: Csurka et al. 2013, doi:10.5244/C.27.32.
    """
    is_known = np.isfinite(truth)
    answer = np.where(is_known, answer, -1)
    truth = np.where(is_known, truth, -1).astype(int)
    reach = max(BORDER_SHARE * np.hypot(*truth.shape), 1.0)
    scores = []
    for label in np.union1d(answer, truth):
        if label < 0:
            continue
        found, right = (_border(x, label) for x in (answer, truth))
        if not found.any() and not right.any():
            continue
        if not found.any() or not right.any():
            scores.append(0.0)
            continue
        precision = (distance_transform_edt(~right)[found] <= reach).mean()
        recall = (distance_transform_edt(~found)[right] <= reach).mean()
        both = precision + recall
        scores.append(2 * precision * recall / both if both else 0.0)
    return float(np.mean(scores)) if scores else float("nan")


def _border(classes, label):
    """Return whether a pixel is of a class and a neighbour of another one."""
    padded = np.pad(classes, 1, mode="edge")
    middle = padded[1:-1, 1:-1]
    neighbours = (
        padded[:-2, 1:-1],
        padded[2:, 1:-1],
        padded[1:-1, :-2],
        padded[1:-1, 2:],
    )
    # Where nothing is known there is no border.
    differs = [(x != middle) & (x >= 0) for x in neighbours]
    return (middle == label) & np.any(differs, axis=0)


@dataclasses.dataclass
class DepthTally:
    """Accumulates how well the depths of pixels were found.

    Args:
        is_relative: Whether outputs are right up to scale and shift, and
            larger ones nearer: they are fitted to each image, see
            `fit_depths`.
        max_depth: Largest depth in metres.
    """

    is_relative: bool
    max_depth: float
    score_name = "abs_rel"
    is_higher_better = False
    class_names = ()
    confusion = None

    def __post_init__(self):
        self.rows = []

    def answer(self, outputs: np.ndarray, maps: np.ndarray) -> np.ndarray:
        """Return the depths (B, H, W) of outputs (B, H, W, 1), in metres."""
        outputs = outputs[..., 0]
        if not self.is_relative:
            return outputs
        fitted = [
            fit_depths(output, truth, self.max_depth)
            for output, truth in zip(outputs, maps)
        ]
        return np.stack(fitted)

    def add(self, answers: np.ndarray, maps: np.ndarray):
        """Add the answers for images.

        Shapes:
            answers: (B, H, W), metres. maps: (B, H, W), the right ones, NaN
            where unknown.
        """
        for answer, truth in zip(answers, maps):
            is_known = np.isfinite(truth)
            right = truth[is_known].astype("float64")
            found = np.maximum(answer[is_known].astype("float64"), LEAST_DEPTH)
            ratio = np.maximum(found / right, right / found)
            self.rows.append(
                {
                    "abs_rel": float((np.abs(found - right) / right).mean()),
                    "rmse": float(np.sqrt(np.square(found - right).mean())),
                    **{
                        f"delta{power}": float((ratio < DELTA**power).mean())
                        for power in (1, 2, 3)
                    },
                }
            )

    def report(self) -> dict[str, float | int]:
        """Return the figures over all images; at least one is required.

        Each is a mean over the images of the figure of their known pixels.

        Returns:
            num_examples: Number of images.
            abs_rel: Error, divided by the depth.
            rmse: Root of the mean square of the errors, in metres.
            delta1, delta2, delta3: Share of the depths that are less than
                1.25, 1.25^2, 1.25^3 times too large or too small.

        Reference: Eigen et al. 2014, arXiv:1406.2283, section 4.
        """
        return {
            "num_examples": len(self.rows),
            **{
                name: float(np.mean([row[name] for row in self.rows]))
                for name in self.rows[0]
            },
        }


def fit_depths(
    output: np.ndarray, truth: np.ndarray, max_depth: float
) -> np.ndarray:
    """Return metres of an output that is right up to scale and shift.

    Nearness, the inverse of a depth, is fitted by least squares to that of the
    known pixels.

    Shapes:
        output: (H, W), larger is nearer. truth: (H, W), metres, NaN where
        unknown. returns: (H, W), at most `max_depth`.

    Reference: Ranftl et al. 2020, arXiv:1907.01341.
    """
    is_known = np.isfinite(truth)
    x = output[is_known].astype("float64")
    basis = np.stack([x, np.ones_like(x)], -1)
    (scale, shift), *_ = np.linalg.lstsq(basis, 1 / truth[is_known], rcond=None)
    nearness = np.clip(scale * output + shift, 1 / max_depth, 1 / LEAST_DEPTH)
    return 1 / nearness
