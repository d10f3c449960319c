"""The update rule of Adam."""

import numpy as np
import tensorflow as tf

from trainers.optim.means import mass, mix

BETA2 = 0.999  # Of Adam: decay of the mean square of the gradients.


def adam(gradient, slots, numbers):
    """Divide the mean gradient by the root of its mean square, plus epsilon.

    Both means are corrected for their initial value of zero.

    Reference: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1. With decay:
        Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """
    share1, share2 = numbers["share1"], numbers["share2"]
    first = mix(slots["first_moment"], gradient, share1)
    second = mix(slots["second_moment"], tf.square(gradient), share2)
    mean = first / numbers["mass1"]
    root = tf.sqrt(second / numbers["mass2"])
    new = {"first_moment": first, "second_moment": second}
    return mean / (root + numbers["epsilon"]), new


def adam_kernel(weight, slots, gradient, numbers, rate):
    """Make the update of `adam` in place, with TensorFlow's operation.

    The operation would compute the masses from powers of the decays, which
    are inaccurate near 1. Powers of zero switch that off, and the masses
    become part of the rate and of epsilon.

    Args:
        weight: Variable to update.
        slots: Variables by name, to update.
        gradient: Gradient of the loss.
        numbers: Those of `adam_numbers`.
        rate: Learning rate.
    """
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
    root = tf.sqrt(mass2)
    return {
        "share1": tf.constant(1 - beta1),
        "share2": tf.constant(1 - beta2),
        "mass1": mass1,
        "mass2": mass2,
        "epsilon": tf.constant(epsilon),
        "beta1": tf.constant(beta1),
        "beta2": tf.constant(beta2),
        "kernel_rate": root / mass1,
        "kernel_epsilon": epsilon * root,
    }


def adam_slots(shape):
    """Return the shapes of the two moments: that of the weight."""
    return {"first_moment": shape, "second_moment": shape}
