"""SinCosPositionEmbedding2D: a fixed table of rows and columns."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.position_embedding import PositionEmbedding


@keras.saving.register_keras_serializable(package="keras_vit")
class SinCosPositionEmbedding2D(PositionEmbedding):
    """The fixed 2-D table of the plain ViT baseline.

    The patch at row y and column x gets [sin(x w), cos(x w), sin(y w),
    cos(y w)], w_k = 10000^(-k / (q - 1)), k = 0 ... q - 1, q = D / 4. Prefix
    tokens get zeros.

    Reference: Beyer et al. 2022, arXiv:2205.01580; big_vision's sincos2d.
    """

    width_divisor = 4
    may_lack_table = True

    def table(self, grid_size):
        y, x = (ops.arange(size, dtype="float32") for size in grid_size)
        y = ops.broadcast_to(y[:, None], grid_size)
        x = ops.broadcast_to(x[None], grid_size)
        return self.flat_with_prefix(self._encode(y, x))

    def rows_at(self, coordinates, sizes):
        return self._encode(coordinates[..., 0], coordinates[..., 1])

    def _encode(self, y, x):
        """Return the rows (..., D) of patches in rows y and columns x."""
        quarter = self.width // 4
        steps = np.arange(quarter) / max(quarter - 1, 1)
        omega = ops.convert_to_tensor(10_000.0**-steps, "float32")
        y, x = ops.expand_dims(y, -1) * omega, ops.expand_dims(x, -1) * omega
        parts = (ops.sin(x), ops.cos(x), ops.sin(y), ops.cos(y))
        return ops.concatenate(parts, axis=-1)
