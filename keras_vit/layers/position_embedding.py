"""Position embeddings: learned tables and fixed sine-cosine tables.

Each layer adds one row of its table to each token. The rows of the patches
form a grid of (h, w), row by row; those of the prefix tokens (the class token)
come first. A layer is built for one grid, but supports any other: learned
tables are resized, and fixed tables are computed for the new grid.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.layers.position_grid import (
    is_same_size,
    resize_position_grid,
)
from keras_vit.tables import pick


class PositionEmbedding(keras.layers.Layer):
    """Add a position embedding to each token.

    Subclasses define the table. If the image size is not known before the
    call, pass `features`, the images or feature maps that the patches were cut
    from; the layer then computes the grid from their size.

    Shapes:
        tokens: (B, T, D) with T = num_prefix_tokens + h * w.
        features: (B, h * P, w * P, C), or None.
        returns: (B, T, D).

    Args:
        grid_size: (h, w), rows and columns of the grid of the table.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
        patch_size: Side P of a patch in `features`; unused without them.

    Raises:
        ValueError: If the number of tokens does not match the grid.
    """

    def __init__(
        self,
        grid_size: tuple[int, int],
        num_prefix_tokens: int = 1,
        patch_size: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.grid_size = tuple(grid_size)
        self.num_prefix_tokens = num_prefix_tokens
        self.patch_size = patch_size
        self.supports_masking = True

    def build(self, tokens_shape, features_shape=None):
        length, self.width = tokens_shape[1:]
        if features_shape is None:
            expected = self.num_prefix_tokens + math.prod(self.grid_size)
            self._check_length(length, expected)
        self.build_table(self.width)
        self.built = True

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
        return tokens + table[None]  # (B, T, D)

    def build_table(self, width: int):
        """Check `width` and create the weights that the table needs."""
        raise NotImplementedError

    def table(self, grid_size: tuple):
        """Return the rows (T, D) for a grid of (h, w)."""
        raise NotImplementedError

    def flat_with_prefix(self, grid):
        """Return the rows (T, D) of a grid (h, w, D), zero for the prefix."""
        grid = ops.reshape(grid, (-1, self.width))
        return ops.pad(grid, ((self.num_prefix_tokens, 0), (0, 0)))

    def resize_from(self, source: "PositionEmbedding"):
        """Copy the weights of `source`, resized to the grid of this layer.

        See `resize_position_grid`.
        """
        if self.weights:
            raise NotImplementedError

    def compute_output_shape(self, tokens_shape, features_shape=None):
        return tuple(tokens_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "grid_size": list(self.grid_size),
            "num_prefix_tokens": self.num_prefix_tokens,
            "patch_size": self.patch_size,
        }


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
        grid = resize_position_grid(grid, new_size)  # (h', w', D)
        grid = ops.reshape(grid, (-1, self.width))  # (h' * w', D)
        return ops.concatenate([prefix, grid], axis=0)


@keras.saving.register_keras_serializable(package="keras_vit")
class LearnedPositionEmbedding2D(PositionEmbedding):
    """One learned vector for each column and each row of the grid.

    The patch in column x and row y gets [X[x], Y[y]], each of size D / 2.
    Prefix tokens get zeros, because they have no position in the image.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix D.4.
    """

    def build_table(self, width):
        check_width_divisible(width, 2)
        for name, size in zip(("rows", "columns"), self.grid_size):
            weight = self.add_weight(
                name=name,
                shape=(size, width // 2),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
            setattr(self, name, weight)

    def table(self, grid_size):
        h, w = grid_size
        rows = resize_position_grid(self.rows, (h,))  # (h, D/2)
        columns = resize_position_grid(self.columns, (w,))  # (w, D/2)
        half = self.width // 2
        x = ops.broadcast_to(columns[None], (h, w, half))
        y = ops.broadcast_to(rows[:, None], (h, w, half))
        return self.flat_with_prefix(ops.concatenate([x, y], axis=-1))

    def resize_from(self, source):
        h, w = self.grid_size
        self.rows.assign(resize_position_grid(source.rows, (h,)))
        self.columns.assign(resize_position_grid(source.columns, (w,)))


@keras.saving.register_keras_serializable(package="keras_vit")
class SinCosPositionEmbedding(PositionEmbedding):
    """The fixed 1-D table of the original Transformer.

    Row p alternates sin(p w_i) and cos(p w_i), with w_i = 10000^(-2i / D).
    The tokens are numbered in order, prefix tokens first.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """

    def build_table(self, width):
        check_width_divisible(width, 2)

    def table(self, grid_size):
        h, w = grid_size
        positions = ops.arange(self.num_prefix_tokens + h * w, dtype="float32")
        steps = np.arange(0, self.width, 2) / self.width
        omega = ops.convert_to_tensor(10_000.0**-steps, "float32")
        angles = positions[:, None] * omega  # (T, D/2)
        table = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.reshape(table, (-1, self.width))  # (T, D)


@keras.saving.register_keras_serializable(package="keras_vit")
class SinCosPositionEmbedding2D(PositionEmbedding):
    """The fixed 2-D table of the plain ViT baseline.

    The patch at row y and column x gets [sin(x w), cos(x w), sin(y w),
    cos(y w)], w_k = 10000^(-k / (q - 1)), k = 0 ... q - 1, q = D / 4. Prefix
    tokens get zeros.

    Reference: Beyer et al. 2022, arXiv:2205.01580; big_vision's sincos2d.
    """

    def build_table(self, width):
        check_width_divisible(width, 4)

    def table(self, grid_size):
        quarter = self.width // 4
        steps = np.arange(quarter) / max(quarter - 1, 1)
        omega = ops.convert_to_tensor(10_000.0**-steps, "float32")
        h, w = grid_size
        y = ops.arange(h, dtype="float32")[:, None] * omega  # (h, D/4)
        x = ops.arange(w, dtype="float32")[:, None] * omega  # (w, D/4)
        parts = [
            ops.broadcast_to(part, (h, w, quarter))
            for part in (
                ops.sin(x)[None],
                ops.cos(x)[None],
                ops.sin(y)[:, None],
                ops.cos(y)[:, None],
            )
        ]
        return self.flat_with_prefix(ops.concatenate(parts, axis=-1))


def check_width_divisible(width: int, divisor: int):
    """Raise a ValueError unless `divisor` divides `width`."""
    if width % divisor:
        raise ValueError(
            "The width of the tokens must be a multiple of "
            f"{divisor} for this position embedding. Received: width={width}"
        )


def make_position_embedding(kind: str, **kwargs):
    """Return the layer of `kind`, or None for "none".

    Args:
        kind: A key of POSITION_EMBEDDINGS.
        **kwargs: Arguments of `PositionEmbedding`.
    """
    layer_class = pick(POSITION_EMBEDDINGS, kind, "position_embedding")
    return layer_class and layer_class(**kwargs)


POSITION_EMBEDDINGS = {
    "none": None,
    "learned": LearnedPositionEmbedding,
    "learned_2d": LearnedPositionEmbedding2D,
    "sincos_1d": SinCosPositionEmbedding,
    "sincos_2d": SinCosPositionEmbedding2D,
}
