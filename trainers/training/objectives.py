"""What a recipe learns: the losses of its labels and of a teacher.

And the figures of its evaluations, which are computed from sums over the
images, because sums can be added over batches, devices and processes.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_vit.layers import DistilledHead
from keras_vit.models.features import (
    is_graph,
    name_activation,
    name_output,
)
from keras_vit.preprocessing import preprocess_input
from keras_vit.preprocessing.description import Normalization
from keras_vit.preprocessing.model_inputs import find_scaling
from keras_vit.pretraining import PretrainingModel
from trainers.data.datasets import ImageDataset
from trainers.optim.losses import (
    LOSSES,
    TARGETS,
    Distillation,
    are_all_right,
    is_best_class,
    smooth_labels,
    split_unknown,
)
from trainers.plugins import METRICS
from trainers.recipes.recipe import Recipe
from trainers.training.map_objectives import make_map_loss
from trainers.training.run_folder import NamedModel


def make_loss(
    recipe: Recipe, dataset: ImageDataset, model: keras.Model
) -> dict:
    """Return the losses, `hits` and `figures` of an `Update` for a recipe.

    An evaluation measures the loss of the labels as they are, as `evaluate`
    does: without smoothing, class weights, focus and a teacher.
    """
    if isinstance(model, PretrainingModel):

        def hits(labels, outputs):
            return model.compute_hits(outputs)

        return {
            "loss": lambda labels, outputs: model.compute_losses(outputs),
            "hits": hits if model.has_hits else None,
        }
    num_classes = len(dataset.class_names)
    if dataset.maps:
        found = make_map_loss(recipe, num_classes)
        return found | {"figures": Figures(found["figures"])}
    per_image = LOSSES[recipe.loss].function
    is_balanced = recipe.class_weights == "balanced"
    plain = LOSSES[recipe.activation].function

    def smooth(labels):
        return smooth_labels(labels, recipe.label_smoothing)

    if dataset.has_several_labels:
        weights = balance_labels(dataset) if is_balanced else 1.0
        return {
            "loss": lambda y, logits: per_image(smooth(y), logits, weights),
            "eval_loss": plain,
            "hits": are_all_right,
            "figures": with_metrics(
                MeanAveragePrecision(num_classes), num_classes
            ),
        }
    class_weights = balance_classes(dataset) if is_balanced else None

    def loss(labels, logits):
        losses = per_image(smooth(labels), logits)
        if class_weights is None:
            return losses
        return losses * ops.matmul(labels, class_weights)

    return {
        "loss": loss,
        "eval_loss": plain,
        "hits": is_best_class,
        "figures": with_metrics(BalancedAccuracy(num_classes), num_classes),
    }


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of an evaluation, which are computed from sums.

    Args:
        parts: Each with a `name`, a `size`, `measure` and `report`.
    """

    parts: tuple

    @property
    def size(self) -> int:
        """How many numbers `measure` returns."""
        return sum(part.size for part in self.parts)

    def measure(self, labels, logits, weights):
        """Return the sums of all parts, see theirs."""
        sums = [part.measure(labels, logits, weights) for part in self.parts]
        return ops.concatenate(sums)

    def report(self, sums: np.ndarray) -> dict[str, float]:
        """Return the figures of sums of `measure`, by name."""
        ends = np.cumsum([part.size for part in self.parts])
        return {
            part.name: part.report(sums[end - part.size : end])
            for part, end in zip(self.parts, ends)
        }


def with_metrics(figure, num_classes: int) -> Figures:
    """Return a figure with the metrics of plug-ins, see `make_metrics`."""
    return Figures((figure, *make_metrics(num_classes)))


def make_metrics(num_classes: int) -> list["MeanOverImages"]:
    """Return the metrics of plug-ins.

    Raises:
        ValueError: If one does not return a number for each image.
    """
    count = num_classes + 1  # A wrong axis has another length.
    labels = ops.one_hot(ops.arange(count) % num_classes, num_classes)
    for name, function in METRICS.items():
        shape = tuple(ops.shape(function(labels, ops.zeros_like(labels))))
        if shape != (count,):
            raise ValueError(
                f"METRICS: {name!r} must return a number for each image, of "
                f"the shape ({count},) for labels of the shape "
                f"{(count, num_classes)}. Received: shape={shape}"
            )
    return [MeanOverImages(*row) for row in METRICS.items()]


@dataclasses.dataclass(frozen=True)
class MeanOverImages:
    """The mean of what a plug-in computes for each image.

    Args:
        name: The name of the figure.
        function: A row of `trainers.plugins.METRICS`.
    """

    name: str
    function: Callable
    size = 2

    def measure(self, labels, logits, weights):
        """Return the sum over the images, and their number, (2,)."""
        values = ops.cast(self.function(labels, logits), "float32")
        # Those of missing images may be infinite, and 0 times that is NaN.
        values = ops.where(weights > 0, values, 0.0)
        return ops.stack([ops.sum(values * weights), ops.sum(weights)])

    def report(self, sums: np.ndarray) -> float:
        """Return the figure of sums of `measure`."""
        return float(sums[0] / sums[1])


@dataclasses.dataclass(frozen=True)
class BalancedAccuracy:
    """The mean over the classes of the share of their images that is right."""

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

    Classes without positives or without negatives do not count. Logits are cut
    off at 16 and rounded, to 1/128 for up to 512 classes, where labels of equal
    logits share a threshold: an evaluation computes it without rounding.
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
        """Return the figure of sums of `measure`; 0 if none can be ranked."""
        counts = sums.reshape(self.num_classes, self.bins, 2)[:, ::-1]
        positives = counts[..., 1].sum(-1)
        is_ranked = (positives > 0) & (counts[..., 0].sum(-1) > 0)
        if not is_ranked.any():
            return 0.0
        passed = counts[is_ranked].cumsum(1)
        gained = counts[is_ranked, :, 1] / positives[is_ranked, None]
        precisions = passed[..., 1] / np.maximum(passed.sum(-1), 1)
        return float((gained * precisions).sum(-1).mean())


def balance_labels(dataset: ImageDataset) -> np.ndarray:
    """Return the weights with which positives count as much as negatives.

    Shapes:
        returns: (C,), float32, at most MOST_WEIGHT; 1 for a class without
            positives or without negatives.
    """
    labels = dataset.labels(dataset.train_split)
    negatives, positives = ((labels == x).sum(0) for x in (0, 1))
    weights = negatives / np.maximum(positives, 1)
    weights[(positives == 0) | (negatives == 0)] = 1.0
    return np.minimum(weights, MOST_WEIGHT).astype("float32")


MOST_WEIGHT = 100.0  # More would let single images decide.


def balance_classes(dataset: ImageDataset) -> np.ndarray:
    """Return weights with which all classes count equally.

    The weight of a class is inversely proportional to its number of training
    images; the mean over the images is 1.

    Shapes:
        returns: (C,), float32.

    Raises:
        ValueError: If a class has no training images, or an image several
            classes.
    """
    if dataset.has_several_classes(dataset.train_split):
        raise ValueError(
            "`class_weights` must be 'none' if images have several classes. "
            f"Received: dataset={dataset.name!r}"
        )
    labels = dataset.labels(dataset.train_split)
    labels = labels[labels >= 0]  # Others are unknown.
    counts = np.bincount(labels, minlength=len(dataset.class_names))
    empty = [name for name, n in zip(dataset.class_names, counts) if not n]
    if empty:
        raise ValueError(
            "`class_weights` must be 'none' unless each class has training "
            f"images. Received: dataset={dataset.name!r} without any of "
            f"{', '.join(map(repr, empty))}"
        )
    return (counts.sum() / (len(counts) * counts)).astype("float32")


def make_distillation(
    recipe: Recipe, dataset: ImageDataset, model: keras.Model
) -> Distillation | None:
    """Return the part of a teacher in the loss; None without a teacher.

    Raises:
        ValueError: If the teacher cannot be read, or has other classes or
            images.
    """
    if recipe.teacher is None:
        return None
    teacher, pair, source = open_teacher(recipe, dataset)
    mean, deviation = pair
    make_loss = TARGETS[recipe.distillation_target]
    return Distillation(
        make_teach(teacher, pair, recipe.normalization),
        make_loss(LOSSES[recipe.loss], recipe.distillation_temperature),
        recipe.distillation_weight,
        with_both_logits(model),
        teacher,
        f"The teacher reads images with the mean {mean} and the deviation "
        f"{deviation}, {source}.",
    )


def open_teacher(
    recipe: Recipe, dataset: ImageDataset
) -> tuple[keras.Model, Normalization, str]:
    """Return the teacher, mean and deviation of its images, and their source.

    Raises:
        ValueError: See `make_distillation`.
    """
    named = NamedModel(recipe.teacher, is_grey=dataset.channels == 1)
    try:
        model, names = named.load_model(), named.load_class_names()
        if its_recipe := named.load_recipe():
            pair, source = its_recipe.normalization, "as in its run"
        else:
            pair, source = find_normalization(model, recipe.normalization)
    except ValueError as error:
        raise ValueError(f"`teacher` cannot be read: {error}") from None
    _check(model, names, recipe, dataset)
    model.trainable = False
    return model, pair, source


def find_normalization(
    model: keras.Model, ours: Normalization
) -> tuple[Normalization, str]:
    """Return the normalisation of a teacher without a run, and its source.

    A VisionTransformer knows, also inside of another model, and so do layers
    that scale pixels. Other models read images as the trained model does.

    Args:
        model: The teacher.
        ours: Mean and deviation of the images of the trained model.

    Raises:
        ValueError: If its first layers do not tell.
    """
    found = find_scaling(model)
    if found is None:
        return ours, "as the trained model does, because it does not say how"
    return found.mean_and_deviation, "as its first layers say"


def _check(model, names, recipe, dataset):
    received = f"Received: teacher={recipe.teacher!r}"
    if not is_graph(model):
        raise ValueError(
            "`teacher` must be a functional or Sequential model of one input "
            f"and one output. {received}, a {type(model).__name__}"
        )
    classes, shape = dataset.class_names, model.output_shape
    kind = name_output(model)
    if kind == "features" or len(shape) != 2 or shape[-1] != len(classes):
        raise ValueError(
            f"`teacher` must be a classifier of {len(classes)} classes. "
            f"{received}, which returns {kind} of the shape {shape}"
        )
    if names not in (None, classes):
        raise ValueError(
            "`teacher` must have the classes of the data set, in this order: "
            f"{', '.join(classes[:5])}, ... {received} with "
            f"{', '.join(names[:5])}, ..."
        )
    if model.input_shape[-1] != dataset.channels:
        raise ValueError(
            f"`teacher` must read images of {dataset.channels} channels. "
            f"{received}, which reads {model.input_shape[-1]}"
        )


def make_teach(
    teacher: keras.Model, theirs: Normalization, ours: Normalization
):
    """Return the function from images of a model to the teacher's logits.

    Shapes:
        The function takes images (B, H, W, C) and returns (B, classes).
    """
    activation = name_activation(teacher)
    size = teacher.input_shape[1:3]

    def teach(images):
        if None not in size and tuple(images.shape[1:3]) != tuple(size):
            images = ops.image.resize(images, size)
        if theirs != ours:
            mean, deviation = ours
            pixels = 255 * (images * deviation + mean)
            images = preprocess_input(pixels, "channels_last", theirs)
        outputs = ops.cast(teacher(images, training=False), "float32")
        if activation is not None:
            outputs = LOGITS[activation](outputs)
        return ops.stop_gradient(outputs)

    return teach


def _log(probabilities):
    """Return the logarithm, a finite number also for 0."""
    return ops.log(ops.maximum(probabilities, 1e-12))


# For each of CLASSIFIER_ACTIVATIONS, the logits of probabilities. Those of a
# softmax are only known up to a constant.
LOGITS = {
    "softmax": _log,
    "sigmoid": lambda p: _log(p) - _log(1.0 - p),
}


class BothLogits(keras.layers.Layer):
    """Returns the logits of both classifiers of a DistilledHead."""

    def __init__(self, head: DistilledHead):
        super().__init__(dtype=head.dtype_policy, name="both_logits")
        self.head = head

    def call(self, tokens):
        return self.head.both_logits(tokens)


def with_both_logits(model: keras.Model) -> keras.Model | None:
    """Return a model of the same layers with both kinds of logits.

    Returns:
        The model; None if there is no distillation token, so that labels and
        teacher share the logits.
    """
    heads = [x for x in model.layers if isinstance(x, DistilledHead)]
    if not heads:
        return None
    [head] = heads
    both = BothLogits(head)(head.input)
    student = keras.Model(model.input, list(both))
    for name in ("trainable_variables", "non_trainable_variables"):
        ours, theirs = getattr(student, name), getattr(model, name)
        if [id(v) for v in ours] != [id(v) for v in theirs]:
            raise RuntimeError(f"{name} have another order than the model's")
    return student
