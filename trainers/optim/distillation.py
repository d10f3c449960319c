"""Distillation: learning the predictions of a teacher beside the labels."""

import dataclasses
from collections.abc import Callable

import keras
from keras import ops

from trainers.optim.losses import Loss


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
        teacher: The model that `teach` calls, to account for its memory.
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
