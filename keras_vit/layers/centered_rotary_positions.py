"""CenteredRotaryPositions: angles of the centres of the patches."""

import math

import keras
from keras import ops

from keras_vit.layers.rotary_positions import RotaryPositions, join_axes


@keras.saving.register_keras_serializable(package="keras_vit")
class CenteredRotaryPositions(RotaryPositions):
    """Angles of the centres of the patches, for an image from -1 to 1.

    2 pi c temperature^(-j / q), with q = E / 4 and c the coordinate of the
    centre, first of the row, then of the column.

    Args:
        temperature: Base of the frequencies.

    Reference: Simeoni et al. 2025, arXiv:2508.10104, section 3.2 (DINOv3).
    """

    needs = ("rotary_temperature",)
    pairs = "halves"

    def __init__(self, temperature: float = 100.0, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def angles(self, y, x, sizes):
        steps = 2 * math.pi * self.frequencies(self.temperature)
        rows, columns = (
            _centres(positions, size)[..., None] * steps
            for positions, size in zip((y, x), sizes)
        )
        return join_axes(rows, columns, "yx")

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}


def _centres(positions, size):
    """Return the centres of cells of `size` parts of the range -1 to 1."""
    size = ops.cast(size, "float32")
    return (positions + 0.5) / size * 2.0 - 1.0
