"""Position embeddings: a row of a table for each token.

The rows of the patches form a grid of (h, w), row by row; those of the prefix
tokens (the class token) come first. A layer is built for one grid, but
supports any other: learned tables are resized, and fixed tables are computed
for the new grid.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.layers import kernels
from keras_vit.layers.base import GridLayer, wide
from keras_vit.layers.resize import (
    RESIZES,
    read_position_grid,
    resize_position_grid,
)
from keras_vit.tables import check_name


class PositionEmbedding(GridLayer):
    """Add a position embedding to each token.

    Subclasses define the table. The class attribute `width_divisor` must
    divide the width of a token, and `may_lack_table` states whether there are
    checkpoints that leave the table out, as it can be computed.

    Shapes:
        tokens: (B, T, D) with T = num_prefix_tokens + h * w.
        features: (B, h * P, w * P, C), or None, see `GridLayer`.
        returns: (B, T, D); with `returns_rows` (1, T, D).

    Args:
        grid_size: (h, w), rows and columns of the grid of the table.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
        patch_size: Side P of a patch in `features`; unused without them.
        resize: A key of RESIZES: how a learned table is resized.
        returns_rows: Whether the layer returns the table instead of adding it.

    Raises:
        ValueError: If the number of tokens does not match the grid.
    """

    width_divisor = 1
    may_lack_table = False

    def __init__(
        self,
        grid_size: tuple[int, int],
        num_prefix_tokens: int = 1,
        patch_size: int = 1,
        resize: str = "official",
        returns_rows: bool = False,
        **kwargs,
    ):
        super().__init__(grid_size, num_prefix_tokens, patch_size, **kwargs)
        check_name(RESIZES, resize, "resize")
        self.resize = resize
        self.returns_rows = returns_rows
        self.supports_masking = True

    def build(self, tokens_shape, features_shape=None):
        self.width = tokens_shape[-1]
        if self.width % self.width_divisor:
            raise ValueError(
                "The width of the tokens must be a multiple of "
                f"{self.width_divisor} for this position embedding. "
                f"Received: width={self.width}"
            )
        self.build_table(self.width)

    def call(self, tokens, features=None):
        table = ops.cast(self.table(self.grid_of(features)), tokens.dtype)
        length, expected = tokens.shape[1], table.shape[0]
        # A single token would be broadcast to all rows.
        if None not in (length, expected) and length != expected:
            raise ValueError(
                "`tokens` must be the prefix tokens and one token for each "
                f"patch of the grid, {expected} in all. Received: {length} "
                f"tokens, grid_size={self.grid_size}, "
                f"num_prefix_tokens={self.num_prefix_tokens}"
            )
        rows = table[None]  # (1, T, D)
        return rows if self.returns_rows else tokens + rows

    def build_table(self, width: int):
        """Create the weights that the table needs, none by default."""

    def table(self, grid_size: tuple):
        """Return the rows (T, D) for a grid of (h, w)."""
        raise NotImplementedError

    def add_at(self, tokens, coordinates, sizes):
        """Return tokens whose patches have these places, with positions added.

        Shapes:
            tokens: (B, T, D), with T = num_prefix_tokens + N.
            coordinates: (B, N, 2), the row and the column of each patch.
            sizes: (B, 1, 2), or broadcastable: the grid of each image.
            returns: (B, T, D).
        """
        rows = ops.cast(self.rows_at(coordinates, sizes), tokens.dtype)
        prefix = ops.cast(self.prefix_rows(), tokens.dtype)  # (T - N, D)
        padding = ((0, 0), (self.num_prefix_tokens, 0), (0, 0))
        length = ops.shape(rows)[1]
        prefix = kernels.pad(prefix, ((0, length), (0, 0)))  # (T, D)
        return tokens + kernels.pad(rows, padding) + prefix

    def rows_at(self, coordinates, sizes):
        """Return the rows (B, N, D) for patches at these places."""
        raise NotImplementedError

    def prefix_rows(self):
        """Return the rows of the prefix tokens, zero by default."""
        return ops.zeros((self.num_prefix_tokens, self.width))

    def _places(self, count):
        """Return 0, 1 ... as floats, in which fixed tables are computed."""
        return ops.arange(count, dtype=wide(self.compute_dtype))

    def flat_with_prefix(self, grid):
        """Return the rows (T, D) of a grid (h, w, D), zero for the prefix."""
        grid = ops.reshape(grid, (-1, self.width))
        return kernels.pad(grid, ((self.num_prefix_tokens, 0), (0, 0)))

    def resize_from(self, source: "PositionEmbedding"):
        """Copy the weights of `source`, resized to the grid of this layer."""

    def compute_output_shape(self, tokens_shape, features_shape=None):
        batch_size, length, width = tokens_shape
        return (1 if self.returns_rows else batch_size, length, width)


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
            autocast=False,
        )

    def table(self, grid_size):
        # In a graph for images of any size, the sizes may be tensors.
        is_known = all(isinstance(size, int) for size in grid_size)
        if is_known and grid_size == self.grid_size:
            return self.embedding
        grid = self.embedding[self.num_prefix_tokens :]
        grid = ops.reshape(grid, (*self.grid_size, self.width))  # (h, w, D)
        grid = resize_position_grid(grid, grid_size, self.resize)
        grid = ops.reshape(grid, (-1, self.width))  # (h' * w', D)
        return ops.concatenate([self.prefix_rows(), grid], axis=0)

    def resize_from(self, source):
        self.embedding.assign(source.table(self.grid_size))

    def prefix_rows(self):
        return self.embedding[: self.num_prefix_tokens]

    def rows_at(self, coordinates, sizes):
        grid = self.embedding[self.num_prefix_tokens :]
        grid = ops.reshape(grid, (*self.grid_size, self.width))
        return read_position_grid(grid, coordinates, sizes, self.resize)


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
                autocast=False,
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
        return self._encode(self._places(self.num_prefix_tokens + h * w))

    def prefix_rows(self):
        return self._encode(self._places(self.num_prefix_tokens))

    def rows_at(self, coordinates, sizes):
        index = coordinates[..., 0] * sizes[..., 1] + coordinates[..., 1]
        return self._encode(index + self.num_prefix_tokens)

    def _encode(self, positions):
        """Return the rows (..., D) of positions (...)."""
        steps = np.arange(0, self.width, 2) / self.width
        omega = ops.convert_to_tensor(10_000.0**-steps, positions.dtype)
        angles = ops.expand_dims(positions, -1) * omega  # (..., D/2)
        rows = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.reshape(rows, (*ops.shape(positions), self.width))


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
        y, x = map(self._places, grid_size)
        y = ops.broadcast_to(y[:, None], grid_size)
        x = ops.broadcast_to(x[None], grid_size)
        return self.flat_with_prefix(self._encode(y, x))

    def rows_at(self, coordinates, sizes):
        return self._encode(coordinates[..., 0], coordinates[..., 1])

    def _encode(self, y, x):
        """Return the rows (..., D) of patches in rows y and columns x."""
        quarter = self.width // 4
        steps = np.arange(quarter) / max(quarter - 1, 1)
        omega = ops.convert_to_tensor(10_000.0**-steps, y.dtype)
        y, x = ops.expand_dims(y, -1) * omega, ops.expand_dims(x, -1) * omega
        parts = (ops.sin(x), ops.cos(x), ops.sin(y), ops.cos(y))
        return ops.concatenate(parts, axis=-1)


# Where a model adds its position embedding.
POSITION_PLACEMENTS = dict.fromkeys(
    ("stem", "every_block", "every_block_shared")
)


POSITION_EMBEDDINGS = {
    "none": None,
    "learned": LearnedPositionEmbedding,
    "learned_2d": LearnedPositionEmbedding2D,
    "sincos_1d": SinCosPositionEmbedding,
    "sincos_2d": SinCosPositionEmbedding2D,
}
