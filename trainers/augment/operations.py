"""The operations on images and on batches, by name.

Each value is a factory: it takes the arguments in the line of operations and
returns a function of an image and a seed (OPS) or of a batch (BATCH_OPS, see
`mixing`).
"""

from keras_vit.preprocessing.description import (
    NORMALIZATIONS,
    as_normalization,
    from_range,
)
from trainers.augment.crops import CROPS
from trainers.augment.erasing import ERASING
from trainers.augment.geometry import GEOMETRY
from trainers.augment.mixing import MIXING
from trainers.augment.operation_arguments import ArgumentError, require
from trainers.augment.randaugment import randaugment


def value_range(low: float, high: float):
    """Scale pixels from 0..255 to this range; the default is -1 to 1."""
    require(low < high, "high", "more than `low`", high)
    return from_range(float(low), float(high))


def state_normalization(mean: str | tuple, deviation: tuple | None = None):
    """Normalise pixels by a name, or by a mean and a deviation of each channel.

    Args:
        mean: A key of NORMALIZATIONS, such as imagenet; or the means, as
            fractions of 255.
        deviation: The deviations, as fractions of 255.
    """
    is_name = isinstance(mean, str)
    require(
        is_name == (deviation is None),
        "deviation",
        "given with the means, and not with a name",
        deviation,
    )
    rule = f"one of {', '.join(NORMALIZATIONS)}"
    require(not is_name or mean in NORMALIZATIONS, "mean", rule, mean)
    if is_name:
        return NORMALIZATIONS[mean]
    require(mean and None not in mean, "mean", "numbers", mean)
    try:
        return as_normalization((mean, deviation))
    except ValueError:
        rule = "as many numbers greater than 0 as there are means"
        raise ArgumentError("deviation", rule, deviation) from None


_IMAGE_OPS = {
    **CROPS,
    **ERASING,
    **GEOMETRY,
    "normalize": state_normalization,
    "randaugment": randaugment,
    "value_range": value_range,
}
OPS = dict(sorted(_IMAGE_OPS.items()))

BATCH_OPS = MIXING
# Operations that do not change images: the caller normalises them at the end.
NORMALIZING = ("value_range", "normalize")
