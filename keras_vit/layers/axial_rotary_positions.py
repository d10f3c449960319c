"""AxialRotaryPositions: angles that grow with the row and the column."""

import keras
from keras import ops

from keras_vit.layers.rotary_positions import RotaryPositions, join_axes
from keras_vit.tables import pick


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialRotaryPositions(RotaryPositions):
    """Angles that grow with the row and the column of a patch.

    Half of the angles are those of the row, half those of the column:
    t temperature^(-j / q), with q = E / 4 and t the index of the row or column
    plus `offset`. With a `reference_size`, t is scaled to a grid of that size,
    so that another resolution has the same range of angles.

    Args:
        temperature: Base of the frequencies.
        axes: "yx" if the angles of the row come first, "xy" otherwise.
        reference_size: (rows, columns) that t is scaled to, or None.
        offset: Added to the indices.

    Reference: Heo et al. 2024, arXiv:2403.13298, section 3; Fang et al. 2023,
        arXiv:2303.11331, for the reference size.
    """

    needs = (
        "rotary_temperature",
        "rotary_axes",
        "rotary_reference_size",
        "rotary_offset",
    )

    def __init__(
        self,
        temperature: float = 100.0,
        axes: str = "yx",
        reference_size: tuple[int, int] | None = None,
        offset: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        pick(dict.fromkeys(("yx", "xy")), axes, "axes")  # Raises if unknown.
        self.temperature = temperature
        self.axes = axes
        self.reference_size = reference_size and tuple(reference_size)
        self.offset = offset

    def angles(self, y, x, sizes):
        steps = self.frequencies(self.temperature)
        rows, columns = (
            self._scale(positions, size, axis)[..., None] * steps
            for axis, (positions, size) in enumerate(zip((y, x), sizes))
        )
        return join_axes(rows, columns, self.axes)

    def _scale(self, positions, size, axis):
        positions = positions + self.offset
        if self.reference_size is None:
            return positions
        size = ops.cast(size, "float32")
        return positions / size * float(self.reference_size[axis])

    def get_config(self):
        return {
            **super().get_config(),
            "temperature": self.temperature,
            "axes": self.axes,
            "reference_size": self.reference_size and [*self.reference_size],
            "offset": self.offset,
        }
