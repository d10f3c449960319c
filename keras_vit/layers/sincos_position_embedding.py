"""SinCosPositionEmbedding: the fixed table of the Transformer."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.position_embedding import PositionEmbedding


@keras.saving.register_keras_serializable(package="keras_vit")
class SinCosPositionEmbedding(PositionEmbedding):
    """The fixed 1-D table of the original Transformer.

    Row p alternates sin(p w_i) and cos(p w_i), with w_i = 10000^(-2i / D).
    The tokens are numbered in order, prefix tokens first.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """

    width_divisor = 2

    def table(self, grid_size):
        h, w = grid_size
        positions = ops.arange(self.num_prefix_tokens + h * w, dtype="float32")
        return self._encode(positions)  # (T, D)

    def prefix_rows(self):
        return self._encode(ops.arange(self.num_prefix_tokens, dtype="float32"))

    def rows_at(self, coordinates, sizes):
        index = coordinates[..., 0] * sizes[..., 1] + coordinates[..., 1]
        return self._encode(index + self.num_prefix_tokens)

    def _encode(self, positions):
        """Return the rows (..., D) of positions (...)."""
        steps = np.arange(0, self.width, 2) / self.width
        omega = ops.convert_to_tensor(10_000.0**-steps, "float32")
        angles = ops.expand_dims(positions, -1) * omega  # (..., D/2)
        rows = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.reshape(rows, (*ops.shape(positions), self.width))
