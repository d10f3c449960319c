"""Losses and hits of logits, their scale, and the loss of a teacher."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import ops

from trainers.optim.optimizers import make_variable, value_of


class Loss(NamedTuple):
    """A row of LOSSES.

    Args:
        function: Maps labels (B, C), logits (B, C) and perhaps the weights of
            the positive labels to losses (B,).
        activation: The function that turns the logits of a model trained with
            this loss into probabilities: a key of
            `keras_vit.models.features.CLASSIFIER_ACTIVATIONS`.
    """

    function: Callable
    activation: str


def softmax(labels, logits):
    """Return the cross-entropy of a distribution over classes.

    Shapes:
        labels: (B, C), soft or not. logits: (B, C). returns: (B,).

    Example:
        >>> float(softmax(np.array([[1.0, 0.0]]), np.zeros((1, 2)))[0])
        0.693147...
    """
    return -ops.sum(labels * ops.log_softmax(logits), axis=-1)


def sigmoid(labels, logits, weights=1.0):
    """Return the sum over the classes of their binary cross-entropies.

    Shapes:
        labels: (B, C), each entry in [0, 1], or NaN: such a class does not
            count. logits: (B, C). weights: (C,). returns: (B,).

    Args:
        labels: The labels.
        logits: The logits.
        weights: Factors of the losses of positive labels.

    Reference: big_vision, which trains on ImageNet-21k with this loss.
    """
    return _sum_known(
        labels,
        weights * ops.softplus(-logits),  # -log p
        ops.softplus(logits),  # -log(1 - p)
    )


FOCUS = 2.0


def focal(labels, logits, weights=1.0):
    """Return the focal loss: easy labels count less, as (1 - p)^2.

    Arguments and shapes are those of `sigmoid`; p is the probability of the
    label that is right.

    Reference: Lin et al. 2017, arXiv:1708.02002, eq. 4 and its gamma of 2.
        Differs: no alpha; `weights` stands for it.
    """
    p = ops.sigmoid(logits)
    return _sum_known(
        labels,
        weights * (1.0 - p) ** FOCUS * ops.softplus(-logits),
        p**FOCUS * ops.softplus(logits),
    )


NEGATIVE_FOCUS, MARGIN = 4.0, 0.05


def asymmetric(labels, logits, weights=1.0):
    """Return the asymmetric loss: easy negatives count least, or nothing.

    Those of a probability below 0.05 count nothing. Arguments and shapes are
    those of `sigmoid`.

    Reference: Ridnik et al. 2021, arXiv:2009.14119, eq. 7 with its gamma- of
        4, gamma+ of 0 and margin of 0.05.
    """
    shifted = ops.maximum(ops.sigmoid(logits) - MARGIN, 0.0)
    return _sum_known(
        labels,
        weights * ops.softplus(-logits),
        -(shifted**NEGATIVE_FOCUS) * ops.log(1.0 - shifted),
    )


def split_unknown(labels):
    """Return which of several labels are known, and the labels without NaN.

    Shapes:
        labels: (B, C), NaN where unknown. returns: twice (B, C).
    """
    is_known = ops.logical_not(ops.isnan(labels))
    return is_known, ops.where(is_known, labels, 0.0)


def _sum_known(labels, positive, negative):
    """Return the losses (B,) of labels (B, C), of which NaN does not count."""
    is_known, labels = split_unknown(labels)
    losses = labels * positive + (1.0 - labels) * negative
    return ops.sum(ops.where(is_known, losses, 0.0), axis=-1)


def smooth_labels(labels, smoothing: float):
    """Distribute the share `smoothing` of a label equally over all classes.

    A loss is minimal if the model predicts the smoothed labels. With
    `softmax`, they are a distribution. With `sigmoid`, each class is separate,
    so the target probability of a wrong class is smoothing / C instead of 0.

    Shapes:
        labels: (B, C). returns: (B, C), with the sum 1 of a row that had it.
    """
    return labels * (1.0 - smoothing) + smoothing / labels.shape[-1]


def is_best_class(labels, logits):
    """Return whether the predicted class has the largest label.

    Shapes:
        labels, logits: (B, C). returns: (B,), bools.
    """
    predictions = ops.argmax(logits, -1)[:, None]
    chosen = ops.take_along_axis(labels, predictions, axis=-1)[:, 0]
    return chosen == ops.max(labels, -1)


def are_all_right(labels, logits):
    """Return whether all known labels are more likely right than wrong.

    Shapes:
        labels: (B, C), NaN where unknown. logits: (B, C). returns: (B,), bools.
    """
    is_known, labels = split_unknown(labels)
    is_right = (labels > 0.5) == (logits >= 0)
    return ops.all(ops.logical_or(is_right, ops.logical_not(is_known)), -1)


LOSSES = {
    "softmax": Loss(softmax, activation="softmax"),
    "sigmoid": Loss(sigmoid, activation="sigmoid"),
    "focal": Loss(focal, activation="sigmoid"),
    "asymmetric": Loss(asymmetric, activation="sigmoid"),
}


# Twice this number is infinite in float32, and halving infinity does not help.
MAX_SCALE = 2.0**127


class LossScale(tf.Module):  # Whose variables a checkpoint contains.
    """A factor of the loss that is as large as the gradients allow.

    If a gradient is not finite, the update is skipped and the factor is
    halved. After `growth_steps` updates with finite gradients, the factor is
    doubled, up to 2^127.

    Args:
        factor: The initial factor.
        growth_steps: Number of updates after which the factor is doubled.

    Reference: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.
    """

    def __init__(self, factor: float = 2.0**15, growth_steps: int = 2000):
        super().__init__()
        self.growth_steps = growth_steps
        self._factor = make_variable(factor, "factor")
        self._finite_steps = make_variable(0, "finite_steps", "int32")

    @property
    def state(self) -> list:
        """The variables: the factor, and the updates since it has changed."""
        return [self._factor, self._finite_steps]

    @property
    def factor(self):
        """The current factor of the loss."""
        return value_of(self._factor)

    def next(self, factor, finite_steps, is_finite) -> list:
        """Return factor and number after an update: a pure function.

        Args:
            factor: The factor of the loss.
            finite_steps: Number of updates since it has changed.
            is_finite: Whether all gradients of the update are finite, a
                boolean scalar.
        """
        steps = ops.where(is_finite, finite_steps + 1, 0)
        is_full = steps >= self.growth_steps
        doubled = ops.minimum(factor * 2.0, MAX_SCALE)
        grown = ops.where(is_full, doubled, factor)
        halved = ops.maximum(factor / 2.0, 1.0)
        return [
            ops.where(is_finite, grown, halved),
            ops.where(is_full, 0, steps),
        ]


@dataclasses.dataclass(frozen=True)
class Distillation:
    """The part of a teacher in the loss of a model.

    Args:
        teach: Maps images (B, ...), as the model reads them, to the teacher's
            logits (B, C).
        loss: Maps the teacher's logits and those of the model, both (B, C), to
            losses (B,).
        weight: Share of these losses; those of the labels have the rest.
        student: A model with the weights of the trained one that returns two
            kinds of logits, to be compared with the labels and with the
            teacher; None if the trained model has one kind.
        teacher: The model that `teach` calls. Its weights take memory, and JAX
            passes them to the compiled program.
        note: How the teacher reads images, as a sentence.

    Reference: Hinton et al. 2015, arXiv:1503.02531; Touvron et al. 2021,
        arXiv:2012.12877, section 4.
    """

    teach: Callable
    loss: Callable
    weight: float = 0.5
    student: keras.Model | None = None
    teacher: keras.Model | None = None
    note: str = ""

    def mix(self, losses, teacher_logits, logits):
        """Return the losses of labels and teacher together.

        Shapes:
            losses: (B,). teacher_logits, logits: (B, C). returns: (B,).
        """
        taught = self.loss(teacher_logits, logits)
        return (1 - self.weight) * losses + self.weight * taught


def hard_loss(loss: Loss, temperature: float) -> Callable:
    """Return the loss of the teacher's most likely class.

    Args:
        loss: A row of LOSSES.
        temperature: Has no effect on the most likely class.

    Example:
        >>> from trainers.optim.losses import LOSSES
        >>> loss = hard_loss(LOSSES["softmax"], temperature=1.0)
        >>> float(loss(np.array([[0.0, 9.0]]), np.zeros((1, 2)))[0])
        0.693147...
    """

    def compare(teacher_logits, logits):
        num_classes = teacher_logits.shape[-1]
        best = ops.one_hot(ops.argmax(teacher_logits, -1), num_classes)
        return loss.function(ops.cast(best, logits.dtype), logits)

    return compare


def soft_loss(loss: Loss, temperature: float) -> Callable:
    """Return the loss of the teacher's probabilities.

    With `softmax`, it is the Kullback-Leibler divergence of the softened
    probabilities, times the square of the temperature, so that the size of the
    gradients does not depend on it.

    Differs: the DeiT code divides by the number of classes as well.

    Args:
        loss: A row of LOSSES.
        temperature: Divisor of the logits.
    """
    activate = keras.activations.get(loss.activation)

    def compare(teacher_logits, logits):
        softened = teacher_logits / temperature
        targets = activate(softened)
        # The loss of the teacher itself.
        least = loss.function(targets, softened)
        return temperature**2 * (
            loss.function(targets, logits / temperature) - least
        )

    return compare


# Functions of a row of LOSSES and a temperature. They return a function that
# maps the logits of teacher and model, both (B, C), to losses (B,).
TARGETS = {"hard": hard_loss, "soft": soft_loss}
