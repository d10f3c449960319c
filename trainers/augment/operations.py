"""The operations on images and on batches, by name.

Each value is a factory: it takes the arguments in the line of operations and
returns a function of an image and a seed (OPS) or of a batch (BATCH_OPS, see
`mixing`).
"""

from typing import NamedTuple

from trainers.augment.arguments import require
from trainers.augment.crops import CROPS
from trainers.augment.erasing import ERASING
from trainers.augment.geometry import GEOMETRY
from trainers.augment.mixing import MIXING
from trainers.augment.randaugment import randaugment


class ValueRange(NamedTuple):
    """The range to which pixels of 0 to 255 are scaled for the model."""

    low: float
    high: float


def value_range(low: float, high: float):
    """Scale pixels from 0..255 to this range; the default is -1 to 1."""
    require(low < high, "high", "more than `low`", high)
    return ValueRange(float(low), float(high))


_IMAGE_OPS = {
    **CROPS,
    **ERASING,
    **GEOMETRY,
    "randaugment": randaugment,
    "value_range": value_range,
}
OPS = dict(sorted(_IMAGE_OPS.items()))

BATCH_OPS = MIXING
