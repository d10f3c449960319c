"""Distillation: learning the predictions of a teacher beside the labels."""

import dataclasses
from collections.abc import Callable

import keras
from keras import ops


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


def hard_loss(per_image: Callable) -> Callable:
    """Return the loss of the teacher's most likely class.

    Args:
        per_image: A function of LOSSES.

    Example:
        >>> from trainers.optim.losses import LOSSES
        >>> loss = hard_loss(LOSSES["softmax"].function)
        >>> float(loss(np.array([[0.0, 9.0]]), np.zeros((1, 2)))[0])
        0.693147...
    """

    def loss(teacher_logits, logits):
        num_classes = teacher_logits.shape[-1]
        best = ops.one_hot(ops.argmax(teacher_logits, -1), num_classes)
        return per_image(ops.cast(best, logits.dtype), logits)

    return loss


def soft_loss(
    per_image: Callable, activate: Callable, temperature: float
) -> Callable:
    """Return the loss of the teacher's probabilities.

    With `softmax`, it is the Kullback-Leibler divergence of the softened
    probabilities, times the square of the temperature, so that the size of the
    gradients does not depend on it.

    Differs: the DeiT code divides by the number of classes as well.

    Args:
        per_image: A function of LOSSES.
        activate: Turns logits into probabilities.
        temperature: Divisor of the logits.
    """

    def loss(teacher_logits, logits):
        softened = teacher_logits / temperature
        targets = activate(softened)
        # The loss of the teacher itself.
        least = per_image(targets, softened)
        return temperature**2 * (
            per_image(targets, logits / temperature) - least
        )

    return loss


TARGETS = ("hard", "soft")
