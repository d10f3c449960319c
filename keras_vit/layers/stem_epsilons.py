"""STEM_EPSILONS: the constants that ResNets add to their divisors."""

from typing import NamedTuple

import keras

from keras_vit.tables import pick

GROUPS = 32


class Epsilons(NamedTuple):
    """The small constants that a ResNet adds to its divisors.

    Args:
        norm: Added to the variance in a group normalisation.
        variance: Added to the variance of a kernel.
        deviation: Added to the standard deviation of a kernel.
    """

    norm: float
    variance: float
    deviation: float


def group_norm(
    name: str,
    epsilons: str,
    dtype,
    gamma_initializer="ones",
    groups: int = GROUPS,
):
    """Return a group normalisation for a ResNet."""
    return keras.layers.GroupNormalization(
        groups=groups,
        epsilon=pick(STEM_EPSILONS, epsilons, "epsilons").norm,
        gamma_initializer=gamma_initializer,
        dtype=dtype,
        name=name,
    )


# With kernels of standard deviation 0.1, the logits of the first two rows
# differ by about 2e-4.
STEM_EPSILONS = {
    "official": Epsilons(norm=1e-6, variance=0.0, deviation=1e-5),
    "timm": Epsilons(norm=1e-5, variance=1e-8, deviation=0.0),
    "bit": Epsilons(norm=1e-5, variance=1e-10, deviation=0.0),
}
