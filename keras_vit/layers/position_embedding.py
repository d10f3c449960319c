"""PositionEmbedding: the base class of all position embeddings.

Each layer adds one row of its table to each token. The rows of the patches
form a grid of (h, w), row by row; those of the prefix tokens (the class token)
come first. A layer is built for one grid, but supports any other: learned
tables are resized, and fixed tables are computed for the new grid.
"""

import math

import keras
from keras import ops

from keras_vit.arguments import as_size, as_whole
from keras_vit.layers.calling import pad
from keras_vit.layers.resize_rules import RESIZES
from keras_vit.tables import pick


class PositionEmbedding(keras.layers.Layer):
    """Add a position embedding to each token.

    Subclasses define the table. The class attribute `width_divisor` must
    divide the width of a token, and `may_lack_table` states whether there are
    checkpoints that leave the table out, as it can be computed. If the image
    size is not known before the call, pass `features`, the images or feature
    maps that the patches were cut from; the layer then computes the grid from
    their size.

    Shapes:
        tokens: (B, T, D) with T = num_prefix_tokens + h * w.
        features: (B, h * P, w * P, C), or None.
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
        super().__init__(**kwargs)
        pick(RESIZES, resize, "resize")  # Raises if unknown.
        self.grid_size = as_size(grid_size, "grid_size")
        self.num_prefix_tokens = as_whole(
            num_prefix_tokens, "num_prefix_tokens", least=0
        )
        self.patch_size = as_whole(patch_size, "patch_size")
        self.resize = resize
        self.returns_rows = returns_rows
        self.supports_masking = True

    def build(self, tokens_shape, features_shape=None):
        length, self.width = tokens_shape[1:]
        if features_shape is None:
            expected = self.num_prefix_tokens + math.prod(self.grid_size)
            self._check_length(length, expected)
        self._check_width()
        self.build_table(self.width)
        self.built = True

    def _check_width(self):
        if self.width % self.width_divisor:
            raise ValueError(
                "The width of the tokens must be a multiple of "
                f"{self.width_divisor} for this position embedding. "
                f"Received: width={self.width}"
            )

    def _check_length(self, length, expected):
        if None not in (length, expected) and length != expected:
            raise ValueError(
                "`tokens` must be the prefix tokens and one token for each "
                f"patch of the grid, {expected} in all. Received: {length} "
                f"tokens, grid_size={self.grid_size}, "
                f"num_prefix_tokens={self.num_prefix_tokens}"
            )

    def call(self, tokens, features=None):
        grid_size = self.grid_size
        if features is not None:
            height, width = ops.shape(features)[1:3]
            grid_size = height // self.patch_size, width // self.patch_size
        table = ops.cast(self.table(grid_size), tokens.dtype)
        self._check_length(tokens.shape[1], table.shape[0])
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
        prefix = pad(prefix, ((0, length), (0, 0)))  # (T, D)
        return tokens + pad(rows, padding) + prefix

    def rows_at(self, coordinates, sizes):
        """Return the rows (B, N, D) for patches at these places."""
        raise NotImplementedError

    def prefix_rows(self):
        """Return the rows of the prefix tokens, zero by default."""
        return ops.zeros((self.num_prefix_tokens, self.width))

    def flat_with_prefix(self, grid):
        """Return the rows (T, D) of a grid (h, w, D), zero for the prefix."""
        grid = ops.reshape(grid, (-1, self.width))
        return pad(grid, ((self.num_prefix_tokens, 0), (0, 0)))

    def resize_from(self, source: "PositionEmbedding"):
        """Copy the weights of `source`, resized to the grid of this layer.

        See `resize_position_grid`.
        """
        if self.weights:
            raise NotImplementedError

    def compute_output_shape(self, tokens_shape, features_shape=None):
        batch_size, length, width = tokens_shape
        return (1 if self.returns_rows else batch_size, length, width)

    def get_config(self):
        return {
            **super().get_config(),
            "grid_size": list(self.grid_size),
            "num_prefix_tokens": self.num_prefix_tokens,
            "patch_size": self.patch_size,
            "resize": self.resize,
            "returns_rows": self.returns_rows,
        }
