"""The operations on images and on batches, by name.

A row is a factory: it takes the arguments in the line of operations and
returns a function of an image and a seed (OPS) or of a batch (BATCH_OPS, see
`mixing`). The rows of a subject stand in its file.
"""

from typing import NamedTuple

from trainers.augment.arguments import require
from trainers.augment.crops import CROPS
from trainers.augment.erasing import ERASING
from trainers.augment.geometry import GEOMETRY
from trainers.augment.mixing import MIXING
from trainers.augment.randaugment import randaugment


class ValueRange(NamedTuple):
    """The numbers that the model reads for pixels of 0 and 255."""

    low: float
    high: float


def value_range(low: float, high: float):
    """Say what 0 and 255 become for the model; -1 and 1 if it is not said."""
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
