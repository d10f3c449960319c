"""What a recipe learns of each pixel: losses and figures of maps.

A map is (B, H, W), with NaN where nothing is known: those pixels do not count.
The loss of an image is a mean over its pixels, so each image counts alike.
"""

import dataclasses

import numpy as np
from keras import ops

from trainers.data.labels import SEGMENT
from trainers.optim.losses import split_unknown
from trainers.recipes.recipe import Recipe

# Share of the squared mean of the errors that the metric loss takes off.
VARIANCE_FOCUS = 0.85
LEAST_DEPTH = 1e-3  # Metres; keeps logarithms and inverses finite.
LEAST_SPREAD = 1e-6


def make_map_loss(recipe: Recipe, num_classes: int) -> dict:
    """Return the losses, `hits` and parts of `Figures` for a recipe.

    Args:
        recipe: A recipe of one of MAPS.
        num_classes: Number of classes of the pixels.
    """
    if recipe.objective == SEGMENT:

        def loss(maps, logits):
            losses = cross_entropy(maps, logits, recipe.label_smoothing)
            if recipe.dice_weight:
                losses += recipe.dice_weight * dice_loss(maps, logits)
            return losses

        return {
            "loss": loss,
            "eval_loss": cross_entropy,
            "hits": share_right,
            "figures": (MeanIoU(num_classes),),
        }
    is_relative = recipe.depth_loss == "relative"
    of_depth = relative_loss if is_relative else metric_loss
    options = is_relative, recipe.max_depth
    return {
        "loss": lambda maps, outputs: of_depth(maps, outputs[..., 0]),
        "hits": None,
        "figures": (AbsRel(*options), Delta1(*options)),
    }


def mean_over_known(values, is_known):
    """Return the mean of the known pixels of each image; 0 without any.

    Shapes:
        values, is_known: (B, H, W). returns: (B,).
    """
    total = ops.sum(ops.where(is_known, values, 0.0), axis=(1, 2))
    count = ops.sum(ops.cast(is_known, values.dtype), axis=(1, 2))
    return total / ops.maximum(count, 1.0)


def cross_entropy(maps, logits, smoothing: float = 0.0):
    """Return the cross-entropy of the known pixels, the mean of each image.

    Shapes:
        maps: (B, H, W), classes. logits: (B, H, W, C). returns: (B,).

    Args:
        maps: The right classes.
        logits: Those of the model.
        smoothing: Share of a label that all classes have equally.
    """
    is_known, classes = split_unknown(maps)
    logs = ops.log_softmax(logits)
    right = ops.take_along_axis(logs, ops.cast(classes, "int32")[..., None], -1)
    losses = (1 - smoothing) * -right[..., 0] - smoothing * ops.mean(logs, -1)
    return mean_over_known(losses, is_known)


def dice_loss(maps, logits):
    """Return 1 minus the mean Dice coefficient of the classes of an image.

    The coefficient of a class is twice what prediction and truth have in
    common, divided by their sum; of the predictions, the probabilities count.

    Shapes:
        maps: (B, H, W), classes. logits: (B, H, W, C). returns: (B,).

    Reference: Milletari et al. 2016, arXiv:1606.04797, without squares.
    """
    is_known, classes = split_unknown(maps)
    known = ops.cast(is_known, logits.dtype)[..., None]
    truths = known * ops.one_hot(ops.cast(classes, "int32"), logits.shape[-1])
    shares = known * ops.softmax(logits)
    common, right, found = (
        ops.sum(x, axis=(1, 2)) for x in (truths * shares, truths, shares)
    )  # (B, C)
    occurs = ops.cast(right > 0, logits.dtype)
    scores = occurs * 2 * common / ops.maximum(right + found, 1.0)
    count = ops.sum(occurs, -1)
    return ops.where(
        count > 0, 1 - ops.sum(scores, -1) / ops.maximum(count, 1), 0.0
    )


def share_right(maps, logits):
    """Return the share of the known pixels whose class is found, (B,)."""
    is_known, classes = split_unknown(maps)
    found = ops.argmax(logits, -1)
    is_right = ops.cast(found, "int32") == ops.cast(classes, "int32")
    return mean_over_known(ops.cast(is_right, "float32"), is_known)


def metric_loss(depths, outputs):
    """Return the scale-invariant error of the logarithms of depths.

    The root of mean(d^2) - 0.85 mean(d)^2, where d is the difference of the
    logarithms of a pixel.

    Shapes:
        depths, outputs: (B, H, W), metres. returns: (B,).

    Reference: Eigen et al. 2014, arXiv:1406.2283; the root and the share as in
        Bhat et al. 2021, arXiv:2011.14141, there multiplied by 10.
    """
    is_known, depths = split_unknown(depths)
    depths = ops.maximum(ops.where(is_known, depths, 1.0), LEAST_DEPTH)
    errors = ops.log(ops.maximum(outputs, LEAST_DEPTH)) - ops.log(depths)
    mean = mean_over_known(errors, is_known)
    square = mean_over_known(ops.square(errors), is_known)
    variance = square - VARIANCE_FOCUS * ops.square(mean)
    return ops.sqrt(ops.maximum(variance, LEAST_SPREAD))


def relative_loss(depths, outputs):
    """Return the mean error of nearness, up to scale and shift.

    Both the inverse of the depths and the outputs are moved to the median 0
    and scaled to the mean absolute value 1.

    Shapes:
        depths: (B, H, W), metres. outputs: (B, H, W), larger is nearer.
        returns: (B,).

    Reference: Ranftl et al. 2020, arXiv:1907.01341; here no pixel is left out.
    """
    is_known, depths = split_unknown(depths)
    nearness = 1 / ops.maximum(ops.where(is_known, depths, 1.0), LEAST_DEPTH)
    errors = ops.abs(
        _standardize(outputs, is_known) - _standardize(nearness, is_known)
    )
    return mean_over_known(errors, is_known)


def _standardize(values, is_known):
    """Return values of the median 0 and the mean absolute value 1."""
    flat = ops.reshape(
        ops.where(is_known, values, float("inf")), (ops.shape(values)[0], -1)
    )
    count = ops.sum(ops.cast(is_known, "int32"), axis=(1, 2))
    middle = ops.maximum((count - 1) // 2, 0)
    # Of two in the middle, the lower one. Without any known one, 0.
    median = ops.take_along_axis(ops.sort(flat, -1), middle[:, None], -1)
    median = ops.where(count[:, None] > 0, median, 0.0)
    moved = ops.where(is_known, values - median[:, :, None], 0.0)
    scale = mean_over_known(ops.abs(moved), is_known)
    return moved / ops.maximum(scale, LEAST_SPREAD)[:, None, None]


def align(depths, outputs, max_depth: float):
    """Return metres of outputs that are right up to scale and shift.

    Nearness, the inverse of a depth, is fitted by least squares to the known
    pixels of each image.

    Shapes:
        depths: (B, H, W), metres. outputs: (B, H, W), larger is nearer.
        returns: (B, H, W), from LEAST_DEPTH to max_depth.

    Reference: Ranftl et al. 2020, arXiv:1907.01341.
    """
    is_known, depths = split_unknown(depths)
    nearness = 1 / ops.maximum(ops.where(is_known, depths, 1.0), LEAST_DEPTH)
    means = [mean_over_known(x, is_known) for x in (outputs, nearness)]
    x, y = (
        ops.where(is_known, value - mean[:, None, None], 0.0)
        for value, mean in zip((outputs, nearness), means)
    )
    covariance = mean_over_known(x * y, is_known)
    variance = mean_over_known(ops.square(x), is_known)
    scale = covariance / ops.maximum(variance, LEAST_SPREAD**2)
    fitted = scale[:, None, None] * (outputs - means[0][:, None, None])
    fitted += means[1][:, None, None]
    return 1 / ops.clip(fitted, 1 / max_depth, 1 / LEAST_DEPTH)


@dataclasses.dataclass(frozen=True)
class MeanIoU:
    """The mean over the classes of intersection over union, of all pixels.

    Classes that neither occur nor are found do not count.
    """

    num_classes: int
    name = "mean_iou"

    @property
    def size(self) -> int:
        """How many numbers `measure` returns."""
        return self.num_classes**2

    def measure(self, maps, logits, weights):
        """Return how many pixels of a class were found to be of another.

        Shapes:
            maps: (B, H, W). logits: (B, H, W, C). weights: (B,), 0 for
            missing images. returns: (C x C,): of each class, those of each
            answer.
        """
        is_known, classes = split_unknown(maps)
        found = ops.cast(ops.argmax(logits, -1), "int32")
        places = ops.cast(classes, "int32") * self.num_classes + found
        counts = ops.logical_and(is_known, (weights > 0)[:, None, None])
        # In float32, a sum of ones would stop at 2^24.
        sums = ops.segment_sum(
            ops.reshape(ops.cast(counts, "int32"), (-1,)),
            ops.reshape(places, (-1,)),
            num_segments=self.size,
        )
        return ops.cast(sums, "float32")

    def report(self, sums: np.ndarray) -> float:
        """Return the figure of sums of `measure`."""
        counts = sums.reshape(self.num_classes, self.num_classes)
        return float(np.nanmean(intersection_over_union(counts)))


def intersection_over_union(counts: np.ndarray) -> np.ndarray:
    """Return what is right of a class, of what it is or was taken for.

    Shapes:
        counts: (C, C), pixels of each class and answer.
        returns: (C,), NaN for classes that neither occur nor are answers.
    """
    right = np.diagonal(counts)
    either = counts.sum(0) + counts.sum(1) - right
    return np.where(either > 0, right / np.maximum(either, 1), np.nan)


@dataclasses.dataclass(frozen=True)
class _DepthFigure:
    """A mean over the images of a mean over their pixels."""

    is_relative: bool
    max_depth: float
    size = 2

    def per_pixel(self, depths, outputs):
        """Return the values of pixels, (B, H, W)."""
        raise NotImplementedError

    def values(self, maps, outputs):
        """Return the figure of each image, (B,)."""
        outputs = outputs[..., 0]
        if self.is_relative:
            outputs = align(maps, outputs, self.max_depth)
        is_known, depths = split_unknown(maps)
        depths = ops.maximum(ops.where(is_known, depths, 1.0), LEAST_DEPTH)
        found = ops.maximum(outputs, LEAST_DEPTH)
        return mean_over_known(self.per_pixel(depths, found), is_known)

    def measure(self, maps, outputs, weights):
        """Return the sum over the images, and their number, (2,)."""
        values = self.values(maps, outputs)
        return ops.stack([ops.sum(values * weights), ops.sum(weights)])

    def report(self, sums: np.ndarray) -> float:
        """Return the figure of sums of `measure`."""
        return float(sums[0] / sums[1])


class AbsRel(_DepthFigure):
    """The absolute error of a depth, divided by the depth."""

    name = "abs_rel"

    def per_pixel(self, depths, outputs):
        return ops.abs(outputs - depths) / depths


class Delta1(_DepthFigure):
    """The share of the depths that are at most 1.25 times too far or near."""

    name = "delta1"

    def per_pixel(self, depths, outputs):
        ratio = ops.maximum(outputs / depths, depths / outputs)
        return ops.cast(ratio < 1.25, "float32")
