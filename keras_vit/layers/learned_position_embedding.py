"""LearnedPositionEmbedding: one learned row for every token."""

import math

import keras
from keras import ops

from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.position_grid import (
    is_same_size,
    read_position_grid,
    resize_position_grid,
)


@keras.saving.register_keras_serializable(package="keras_vit")
class LearnedPositionEmbedding(PositionEmbedding):
    """One learned row for every token: the 1-D embedding, the default.

    Example:
        >>> layer = LearnedPositionEmbedding(grid_size=(4, 2))
        >>> tuple(layer(np.ones((2, 9, 24))).shape)
        (2, 9, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 1 and appendix
        D.4; initialised as in the official code, normal with deviation 0.02.
    """

    def build_table(self, width):
        length = self.num_prefix_tokens + math.prod(self.grid_size)
        self.embedding = self.add_weight(
            name="embedding",
            shape=(length, width),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def table(self, grid_size):
        return self._resized(self.embedding, self.grid_size, grid_size)

    def resize_from(self, source):
        self.embedding.assign(
            self._resized(source.embedding, source.grid_size, self.grid_size)
        )

    def _resized(self, embedding, old_size, new_size):
        if is_same_size(new_size, old_size):
            return embedding
        prefix = embedding[: self.num_prefix_tokens]
        grid = embedding[self.num_prefix_tokens :]
        grid = ops.reshape(grid, (*old_size, self.width))  # (h, w, D)
        grid = resize_position_grid(grid, new_size, self.resize)  # (h', w', D)
        grid = ops.reshape(grid, (-1, self.width))  # (h' * w', D)
        return ops.concatenate([prefix, grid], axis=0)

    def prefix_rows(self):
        return self.embedding[: self.num_prefix_tokens]

    def rows_at(self, coordinates, sizes):
        grid = self.embedding[self.num_prefix_tokens :]
        grid = ops.reshape(grid, (*self.grid_size, self.width))
        return read_position_grid(grid, coordinates, sizes, self.resize)
