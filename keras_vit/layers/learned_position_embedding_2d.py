"""LearnedPositionEmbedding2D: a learned vector for each column and row."""

import keras
from keras import ops

from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.position_grid import resize_position_grid
from keras_vit.layers.resize_rules import RESIZES


@keras.saving.register_keras_serializable(package="keras_vit")
class LearnedPositionEmbedding2D(PositionEmbedding):
    """One learned vector for each column and each row of the grid.

    The patch in column x and row y gets [X[x], Y[y]], each of size D / 2.
    Prefix tokens get zeros, because they have no position in the image.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix D.4.
    """

    width_divisor = 2

    def build_table(self, width):
        h, w = self.grid_size
        shapes = {"rows": (h, width // 2), "columns": (w, width // 2)}
        for name, shape in shapes.items():
            weight = self.add_weight(
                name=name,
                shape=shape,
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
            setattr(self, name, weight)

    def table(self, grid_size):
        h, w = grid_size
        rows = resize_position_grid(self.rows, (h,), self.resize)  # (h, D/2)
        columns = resize_position_grid(self.columns, (w,), self.resize)
        half = self.width // 2
        x = ops.broadcast_to(columns[None], (h, w, half))
        y = ops.broadcast_to(rows[:, None], (h, w, half))
        return self.flat_with_prefix(ops.concatenate([x, y], axis=-1))

    def rows_at(self, coordinates, sizes):
        rule = RESIZES[self.resize]
        y, x = (
            ops.matmul(
                rule.weights(coordinates[..., axis], sizes[..., axis], size),
                weight,
            )
            for axis, (weight, size) in enumerate(
                zip((self.rows, self.columns), self.grid_size)
            )
        )
        return ops.concatenate([x, y], axis=-1)  # (B, N, D)

    def resize_from(self, source):
        for new, old, size in zip(self.weights, source.weights, self.grid_size):
            new.assign(resize_position_grid(old, (size,), self.resize))
