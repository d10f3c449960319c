"""Rotary positions: the angles by which attention turns queries and keys.

Each layer computes the angles of one grid of patches; `rotate_pairs` turns by
them. Prefix tokens have no position and are not turned.
"""

import math

import keras
from keras import ops

from keras_vit.arguments import as_size, as_whole
from keras_vit.layers.calling import pad


class RotaryPositions(keras.layers.Layer):
    """Compute the cosines and sines of the angles of each token.

    Subclasses define the angles. The class attribute `needs` lists the fields
    of ViTConfig that the constructor takes; `pairs` states which features turn
    together, `is_shared` whether all blocks have the same layer, and
    `needed_token` the token, such as "class", without which no model has the
    layer. If the image size is not known before the call, pass `features`, as
    to `PositionEmbedding`.

    Shapes:
        tokens: (B, T, D) with T = num_prefix_tokens + h * w; only the type of
            their numbers is read.
        features: (B, h * P, w * P, C), or None.
        returns: (2, T, 1, E) or (2, T, K, E), the cosines, then the sines.

    Args:
        grid_size: (h, w), rows and columns of the grid.
        head_size: Size E of a head, a multiple of 4.
        num_prefix_tokens: Number of tokens before the patches.
        patch_size: Side P of a patch in `features`; unused without them.

    Raises:
        ValueError: If 4 does not divide `head_size`.
    """

    needs = ()
    pairs = "neighbours"
    is_shared = True
    needed_token = None

    def __init__(
        self,
        grid_size: tuple[int, int],
        head_size: int,
        num_prefix_tokens: int = 1,
        patch_size: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.head_size = as_whole(head_size, "head_size")
        if head_size % 4:
            raise ValueError(
                "`head_size` must be a multiple of 4, for the sine and cosine "
                f"of two axes. Received: head_size={head_size}"
            )
        self.grid_size = as_size(grid_size, "grid_size")
        self.num_prefix_tokens = as_whole(
            num_prefix_tokens, "num_prefix_tokens", least=0
        )
        self.patch_size = as_whole(patch_size, "patch_size")

    def call(self, tokens, features=None):
        grid_size = self.grid_size
        if features is not None:
            height, width = ops.shape(features)[1:3]
            grid_size = height // self.patch_size, width // self.patch_size
        y, x = (ops.arange(size, dtype="float32") for size in grid_size)
        angles = self.angles(y[:, None], x[None], grid_size)
        angles = ops.reshape(angles, (1, -1, *angles.shape[2:]))
        return self._rotation(angles)[:, 0]

    def at(self, coordinates, sizes):
        """Return the cosines and sines for patches at these places.

        Shapes:
            coordinates: (B, N, 2), the row and the column of each patch.
            sizes: (B, 1, 2), or broadcastable: the grid of each image.
            returns: (2, B, T, 1 or K, E).
        """
        y, x = coordinates[..., 0], coordinates[..., 1]
        sizes = sizes[..., 0], sizes[..., 1]
        return self._rotation(self.angles(y, x, sizes))

    def _rotation(self, angles):
        """Return the cosines and sines (2, B, T, 1 or K, E) of all tokens."""
        angles = self.add_prefix(angles)  # (B, T, 1 or K, E/2)
        if self.pairs == "neighbours":
            angles = ops.repeat(angles, 2, axis=-1)  # (B, T, 1 or K, E)
        else:
            angles = ops.concatenate([angles, angles], axis=-1)
        rotation = ops.stack([ops.cos(angles), ops.sin(angles)])
        return ops.cast(rotation, self.compute_dtype)

    def add_prefix(self, angles):
        """Return the angles of all tokens, from those of the patches.

        Shapes:
            angles: (B, N, 1 or K, E/2). returns: (B, T, 1 or K, E/2).
        """
        # An angle of zero turns nothing.
        prefix = (self.num_prefix_tokens, 0)
        return pad(angles, ((0, 0), prefix, (0, 0), (0, 0)))

    def angles(self, y, x, sizes: tuple):
        """Return the angles of patches, in radians.

        Shapes:
            y, x: broadcastable. returns: (..., 1 or K, E/2).

        Args:
            y: Rows of the patches, as floats.
            x: Columns of the patches, as floats.
            sizes: (h, w), numbers or tensors.
        """
        raise NotImplementedError

    def frequencies(self, temperature: float):
        """Return temperature^(-j / q) for j = 0 ... q - 1, q = E / 4."""
        steps = ops.arange(self.head_size // 4, dtype="float32")
        return ops.exp(steps * (-math.log(temperature) * 4 / self.head_size))

    def compute_output_shape(self, tokens_shape, features_shape=None):
        return (2, tokens_shape[1], 1, self.head_size)

    def get_config(self):
        return {
            **super().get_config(),
            "grid_size": list(self.grid_size),
            "head_size": self.head_size,
            "num_prefix_tokens": self.num_prefix_tokens,
            "patch_size": self.patch_size,
        }


def join_axes(rows, columns, axes: str):
    """Return the angles of patches, for all heads.

    Shapes:
        rows, columns: (..., E/4), broadcastable. returns: (..., 1, E/2).

    Args:
        rows: The angles of the row of each patch.
        columns: The angles of its column.
        axes: "yx" if the angles of the row come first, "xy" otherwise.
    """
    size = rows.shape[-1]
    # Sums with zeros, as each part would have to be repeated otherwise.
    none = ((0, 0),) * (len(rows.shape) - 1)
    before, after = (*none, (size, 0)), (*none, (0, size))
    row_pad, column_pad = (after, before) if axes == "yx" else (before, after)
    both = pad(rows, row_pad) + pad(columns, column_pad)
    return ops.expand_dims(both, -2)
