"""Update rules by name, as in the papers and the official code.

A rule computes a direction from the gradient and from the slots of the weight.
`optimizers.py` subtracts the direction times the learning rate.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from keras import ops


def _number(value):
    return ops.convert_to_tensor(value, "float32")


def mix(mean, value, share):
    """Return (1 - share) * mean + share * value.

    The implemented form keeps the mean of equal values unchanged, although the
    two rounded factors do not sum to 1.
    """
    return mean + share * (value - mean)


def mass(decay, count):
    """Return 1 - decay^count, the sum of the weights of `count` values.

    Accurate even if the power is near 1, as with a decay of 0.9999.
    """
    return -ops.expm1(count * math.log(decay))


def adafactor(gradient, slots, numbers):
    """Divide by the root of a factored mean square, then take the mean.

    Only the row means and the column means of the mean square of a matrix are
    kept; their product, divided by the total mean, approximates it.

    Reference: Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4; Zhai et
        al. 2022, arXiv:2106.04560, section 3.
    Differs: As in big_vision, without clipping, without a rate relative to the
        weight, and without a correction for the initial mean of zero.
    """
    share1, share2 = numbers["share1"], numbers["share2"]
    square = ops.square(gradient) + numbers["epsilon"]
    axes = factored_axes(gradient.shape)
    if axes:
        row_axis, column_axis = axes
        rows = ops.mean(square, column_axis, keepdims=True)
        columns = ops.mean(square, row_axis, keepdims=True)
        rows = mix(slots["second_moment_rows"], rows, share2)
        columns = mix(slots["second_moment_columns"], columns, share2)
        new = {"second_moment_rows": rows, "second_moment_columns": columns}
        share = rows / ops.mean(rows, row_axis, keepdims=True)
        scaled = gradient * ops.rsqrt(share) * ops.rsqrt(columns)
    else:
        second = mix(slots["second_moment"], square, share2)
        new = {"second_moment": second}
        scaled = gradient * ops.rsqrt(second)
    first = mix(slots["first_moment"], scaled, share1)
    return first, {**new, "first_moment": first}


def adafactor_numbers(
    step, beta1=0.9, max_beta2=0.999, exponent=0.8, epsilon=1e-30
):
    """Return the share of the newest value in each mean, and epsilon."""
    beta2 = ops.minimum(max_beta2, 1 - (step + 1) ** -exponent)
    return {
        "share1": _number(1 - beta1),
        "share2": 1 - beta2,
        "epsilon": _number(epsilon),
    }


def adafactor_slots(shape):
    """Return the shapes of the first moment and of the parts of the second.

    Example:
        >>> adafactor_slots((64, 48))["second_moment_rows"]
        (64, 1)
    """
    axes = factored_axes(shape)
    if not axes:
        return adam_slots(shape)
    row_axis, column_axis = axes
    return {
        "first_moment": shape,
        "second_moment_rows": with_one(shape, column_axis),
        "second_moment_columns": with_one(shape, row_axis),
    }


def with_one(shape, axis):
    """Return the shape of a mean over `axis`, which keeps length 1."""
    return (*shape[:axis], 1, *shape[axis + 1 :])


def factored_axes(shape, min_size=32):
    """Return the two longest axes of a weight; None if one of them is short."""
    axes = sorted(range(len(shape)), key=lambda axis: shape[axis])[-2:]
    if len(axes) < 2 or shape[axes[0]] < min_size:
        return None
    return sorted(axes)


BETA2 = 0.999  # Of Adam: decay of the mean square of the gradients.


def adam(gradient, slots, numbers):
    """Divide the mean gradient by the root of its mean square, plus epsilon.

    Both means are corrected for their initial value of zero.

    Reference: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1. With decay:
        Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """
    share1, share2 = numbers["share1"], numbers["share2"]
    first = mix(slots["first_moment"], gradient, share1)
    second = mix(slots["second_moment"], ops.square(gradient), share2)
    mean = first / numbers["mass1"]
    root = ops.sqrt(second / numbers["mass2"])
    new = {"first_moment": first, "second_moment": second}
    return mean / (root + numbers["epsilon"]), new


def adam_kernel(weight, slots, gradient, numbers, rate):
    """Make the update of `adam` in place, with TensorFlow's operation.

    The operation would compute the masses from powers of the decays, which
    are inaccurate near 1. Powers of zero switch that off, and the masses
    become part of the rate and of epsilon.
    """
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=weight.handle,
        m=slots["first_moment"].handle,
        v=slots["second_moment"].handle,
        beta1_power=0.0,
        beta2_power=0.0,
        lr=rate * numbers["kernel_rate"],
        beta1=numbers["beta1"],
        beta2=numbers["beta2"],
        epsilon=numbers["kernel_epsilon"],
        grad=gradient,
    )


def adam_numbers(step, beta1=0.9, beta2=BETA2, epsilon=1e-8):
    """Return the share of the newest value in each mean, and their masses.

    The last four are what `adam_kernel` makes of them.
    """
    # The kernel subtracts it from 1 in float32.
    beta2 = float(np.float32(beta2))
    mass1, mass2 = mass(beta1, step + 1), mass(beta2, step + 1)
    root = ops.sqrt(mass2)
    return {
        "share1": _number(1 - beta1),
        "share2": _number(1 - beta2),
        "mass1": mass1,
        "mass2": mass2,
        "epsilon": _number(epsilon),
        "beta1": _number(beta1),
        "beta2": _number(beta2),
        "kernel_rate": root / mass1,
        "kernel_epsilon": epsilon * root,
    }


def adam_slots(shape):
    """Return the shapes of the two moments: that of the weight."""
    return {"first_moment": shape, "second_moment": shape}


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
    norms = [ops.sqrt(ops.sum(ops.square(x))) for x in (weight, direction)]
    ratio = ops.divide_no_nan(*norms)
    return ops.where(ratio > 0, ratio, 1.0) * direction


def lion(gradient, slots, numbers):
    """Take the sign of a mean that gives the newest gradient more weight.

    Reference: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """
    first = slots["first_moment"]
    direction = ops.sign(mix(first, gradient, numbers["share1"]))
    return direction, {"first_moment": mix(first, gradient, numbers["share2"])}


def lion_numbers(step, beta1=0.9, beta2=0.99):
    """Return the share of the newest gradient in the sign and in the mean."""
    return {"share1": _number(1 - beta1), "share2": _number(1 - beta2)}


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
    return {"beta": _number(beta)}


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
ACCUMULATOR_DTYPES = ("float32", "bfloat16")
