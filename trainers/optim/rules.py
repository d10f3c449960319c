"""Update rules by name, as in the papers and the official code.

A rule computes a direction from the gradient and from the slots of the weight.
`optimizers.py` subtracts the direction times the learning rate.
"""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from trainers.optim.adafactor import (
    adafactor,
    adafactor_numbers,
    adafactor_slots,
)
from trainers.optim.adam import (
    BETA2,
    adam,
    adam_kernel,
    adam_numbers,
    adam_slots,
)
from trainers.optim.means import mix


@dataclasses.dataclass(frozen=True)
class Rule:
    """A row of OPTIMIZERS.

    Args:
        direction: Maps a gradient, the slots of the weight and the numbers,
            all float32, to the direction and the new slots.
        slots: Maps the shape of a weight to the shapes of its slots.
        numbers: Maps the step to the numbers by name, scalars that are the
            same for all weights. One tensor for all keeps the graph small.
        rescale: Maps direction + decay * weight, and the weight, to the step
            that is multiplied by the learning rate.
        kernel: Subtracts the direction times the rate from a weight and
            updates its slots, all of float32, in one pass over them. None
            if TensorFlow has no such operation.
        accumulator: The slot with the dtype `accumulator_dtype`: the first
            moment or the momentum. Second moments are always float32.
        can_decay: Whether the rule supports weight decay.
        has_beta2: Whether `numbers` takes BETA2, the decay of the mean square,
            as the argument `beta2`.
    """

    direction: Callable
    slots: Callable
    numbers: Callable
    rescale: Callable = lambda direction, weight: direction
    kernel: Callable | None = None
    accumulator: str = "first_moment"
    can_decay: bool = True
    has_beta2: bool = False


def trust(direction, weight):
    """Scale a direction to the norm of the weight, unless either is zero.

    With the direction of Adam this is LAMB.

    Reference: You et al. 2020, arXiv:1904.00962, algorithm 2, phi(z) = z.
    """
    ratio = tf.math.divide_no_nan(tf.norm(weight), tf.norm(direction))
    return tf.where(ratio > 0, ratio, 1.0) * direction


def lion(gradient, slots, numbers):
    """Take the sign of a mean that gives the newest gradient more weight.

    Reference: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """
    first = slots["first_moment"]
    direction = tf.sign(mix(first, gradient, numbers["share1"]))
    return direction, {"first_moment": mix(first, gradient, numbers["share2"])}


def lion_numbers(step, beta1=0.9, beta2=0.99):
    """Return the share of the newest gradient in the sign and in the mean."""
    return {"share1": tf.constant(1 - beta1), "share2": tf.constant(1 - beta2)}


def lion_slots(shape):
    """Return the shape of the first moment: that of the weight."""
    return {"first_moment": shape}


def sgd(gradient, slots, numbers):
    """Sum the gradients with exponentially decreasing weights: momentum.

    The learning rate multiplies the sum, as in the official code. In Keras,
    each gradient is multiplied by the rate of its own step.

    Reference: Goyal et al. 2017, arXiv:1706.02677, equation 9.
    """
    momentum = numbers["beta"] * slots["momentum"] + gradient
    return momentum, {"momentum": momentum}


def sgd_numbers(step, beta=0.9):
    """Return the factor of the sum of the gradients so far."""
    return {"beta": tf.constant(beta)}


def sgd_slots(shape):
    """Return the shape of the momentum: that of the weight."""
    return {"momentum": shape}


def with_beta2(rule: Rule, name: str, beta2: float) -> Rule:
    """Return a rule of Adam with another decay of the mean square.

    Args:
        rule: A row of OPTIMIZERS.
        name: Its key.
        beta2: The decay; BETA2 changes nothing.

    Raises:
        ValueError: If the rule is not one of Adam.
    """
    if beta2 == BETA2:
        return rule
    if not rule.has_beta2:
        *first, last = sorted(
            key for key, row in OPTIMIZERS.items() if row.has_beta2
        )
        raise ValueError(
            f"`beta2` is for {', '.join(first)} and {last}. "
            f"Received: beta2={beta2}, optimizer={name!r}"
        )
    numbers = functools.partial(rule.numbers, beta2=beta2)
    return dataclasses.replace(rule, numbers=numbers)


ADAMW = Rule(adam, adam_slots, adam_numbers, kernel=adam_kernel, has_beta2=True)
OPTIMIZERS = {
    "adamw": ADAMW,
    "adam": dataclasses.replace(ADAMW, can_decay=False),
    "lamb": Rule(
        adam,
        adam_slots,
        functools.partial(adam_numbers, epsilon=1e-6),
        rescale=trust,
        has_beta2=True,
    ),
    "adafactor": Rule(adafactor, adafactor_slots, adafactor_numbers),
    "lion": Rule(lion, lion_slots, lion_numbers),
    "sgd": Rule(sgd, sgd_slots, sgd_numbers, accumulator="momentum"),
}
ACCUMULATOR_DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16}
