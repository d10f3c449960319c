"""Relative positions: biases and keys for the distances between patches."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers import kernels
from keras_vit.layers.base import Composite, GridLayer, wide
from keras_vit.layers.resize import resize_distances


class RelativePositions(GridLayer):
    """Compute a number for each pair of tokens and each head.

    Attention adds it to the scaled product of the query and the key. The class
    attribute `needs` lists the fields of ViTConfig that the constructor takes,
    and `argument` is the name under which `TransformerBlock` takes the result.

    Shapes:
        tokens: (B, T, D) with T = num_prefix_tokens + h * w; their numbers
            are not read.
        returns: (1, K, T, T); the query has the axis before the last.

    Args:
        grid_size: (h, w), rows and columns of the grid of patches.
        num_heads: Number K of heads.
        num_prefix_tokens: Number of tokens before the patches.
    """

    needs = ()
    argument = "bias"

    def __init__(
        self,
        grid_size: tuple[int, int],
        num_heads: int,
        num_prefix_tokens: int = 1,
        **kwargs,
    ):
        super().__init__(grid_size, num_prefix_tokens, **kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")

    def compute_output_shape(self, tokens_shape):
        length = self.num_prefix_tokens + math.prod(self.grid_size)
        return (1, self.num_heads, length, length)


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionTable(RelativePositions):
    """One learned number for each distance of two patches.

    The table has a row for each of the (2h - 1) (2w - 1) distances, row by
    row, and three more for pairs with prefix tokens, see `pair_index`.

    Args:
        grid_size, num_heads, num_prefix_tokens: See `RelativePositions`.
        position_resize: How the table is resized, see `resize_distances`.

    Reference: Bao et al. 2022, arXiv:2106.08254, appendix; Liu et al. 2021,
        arXiv:2103.14030, section 3.2.
    """

    needs = ("position_resize",)

    def __init__(
        self,
        grid_size: tuple[int, int],
        num_heads: int,
        num_prefix_tokens: int = 1,
        position_resize: str = "bicubic",
        **kwargs,
    ):
        super().__init__(grid_size, num_heads, num_prefix_tokens, **kwargs)
        self.position_resize = position_resize

    def build(self, tokens_shape):
        rows, columns = (2 * size - 1 for size in self.grid_size)
        special = 3 if self.num_prefix_tokens else 0
        shape = (rows * columns + special, self.num_heads)
        self.table = self.add_weight(
            name="table", shape=shape, initializer="zeros"
        )
        index = pair_index(self.grid_size, self.num_prefix_tokens)
        self.index = kernels.constant(index, "int32")

    def call(self, tokens):
        bias = ops.take(self.table, self.index, axis=0)  # (T, T, K)
        return ops.transpose(bias, (2, 0, 1))[None]  # (1, K, T, T)

    def resize_from(self, source: "RelativePositionTable"):
        """Copy the table of `source`, resized to the grid of this layer."""
        table = ops.convert_to_numpy(source.table)
        self.table.assign(
            resize_distances(
                table, source.grid_size, self.grid_size, self.position_resize
            )
        )


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionMlp(RelativePositions, Composite):
    """A small MLP that reads the distance of two patches.

    MLP(sign(d) log(1 + |d|)), for the distance d of (rows, columns). Pairs
    with a prefix token get zero.

    Args:
        hidden_dim: Size of its hidden layer.

    Reference: Liu et al. 2022, arXiv:2111.09883, section 3.3; timm's RelPosMlp.
    """

    needs = ("relative_hidden_dim",)

    def __init__(self, hidden_dim: int, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = as_whole(hidden_dim, "hidden_dim")

    def build(self, tokens_shape):
        dense = keras.layers.Dense
        options = {"activation": "relu"}
        self.hidden = self.inner(dense, "hidden", self.hidden_dim, **options)
        self.out = self.inner(dense, "out", self.num_heads)
        self.hidden.build((None, 2))
        self.out.build((None, self.hidden_dim))
        far = distances(self.grid_size)  # (2h - 1, 2w - 1, 2)
        far = np.sign(far) * np.log1p(np.abs(far))
        self.distances = kernels.constant(
            far.reshape(-1, 2), wide(self.compute_dtype)
        )
        self.index = kernels.constant(pair_index(self.grid_size, 0), "int32")

    def call(self, tokens):
        far = ops.cast(self.distances, self.compute_dtype)
        table = self.out(self.hidden(far))  # ((2h - 1) (2w - 1), K)
        bias = ops.take(table, self.index, axis=0)
        bias = ops.transpose(bias, (2, 0, 1))[None]  # (1, K, N, N)
        prefix = (self.num_prefix_tokens, 0)
        return kernels.pad(bias, ((0, 0), (0, 0), prefix, prefix))


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionKeys(RelativePositions):
    """One learned key for each difference of two places in the sequence.

    Attention adds the scaled products of its queries and these keys to those
    of the queries and the keys of the tokens. All heads share them.

    Shapes:
        tokens: (B, T, D).
        returns: (T, T, D / K), query by key.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix D.4, relative
        positions; initialised as the absolute ones.
    """

    argument = "relative_keys"

    def build(self, tokens_shape):
        length = self.num_prefix_tokens + math.prod(self.grid_size)
        shape = (2 * length - 1, tokens_shape[-1] // self.num_heads)
        self.keys = self.add_weight(
            name="keys",
            shape=shape,
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        places = np.arange(length)
        index = places[:, None] - places + length - 1  # (T, T)
        self.index = kernels.constant(index, "int32")

    def call(self, tokens):
        return ops.take(ops.cast(self.keys, tokens.dtype), self.index, axis=0)

    def compute_output_shape(self, tokens_shape):
        _, *pair = super().compute_output_shape(tokens_shape)[1:]
        return (*pair, tokens_shape[-1] // self.num_heads)

    def resize_from(self, source: "RelativePositionKeys"):
        """Copy the keys of `source`, which must have the same grid.

        Raises:
            ValueError: If it has another one: a difference of places in a
                sequence means other distances there.
        """
        if source.grid_size != self.grid_size:
            raise ValueError(
                "`relative_positions='keys'` belong to one grid of patches, "
                f"{source.grid_size} (rows, columns), and cannot be resized. "
                f"Received: a grid of {self.grid_size}"
            )
        self.set_weights(source.get_weights())


def distances(grid_size: tuple[int, int]) -> np.ndarray:
    """Return all distances of two cells of a grid, as (rows, columns).

    Shapes: returns: (2h - 1, 2w - 1, 2).
    """
    steps = [np.arange(1 - size, size) for size in grid_size]
    return np.stack(np.meshgrid(*steps, indexing="ij"), -1).astype("float64")


def pair_index(
    grid_size: tuple[int, int], num_prefix_tokens: int
) -> np.ndarray:
    """Return the row of the table of distances for each pair of tokens.

    With R distances, row R is for a prefix query and a patch key, R + 1 for a
    patch query and a prefix key, R + 2 for two prefix tokens.

    Shapes: returns: (T, T), query by key.

    Example:
        >>> pair_index((1, 2), 1).tolist()
        [[5, 3, 3], [4, 1, 0], [4, 2, 1]]
    """
    h, w = grid_size
    cells = np.stack(np.divmod(np.arange(h * w), w), -1)  # (N, 2)
    far = cells[:, None] - cells[None] + (h - 1, w - 1)  # (N, N, 2)
    patches = far[..., 0] * (2 * w - 1) + far[..., 1]
    if not num_prefix_tokens:
        return patches
    count = (2 * h - 1) * (2 * w - 1)
    index = np.full((len(patches) + num_prefix_tokens,) * 2, count + 2)
    index[:num_prefix_tokens, num_prefix_tokens:] = count
    index[num_prefix_tokens:, :num_prefix_tokens] = count + 1
    index[num_prefix_tokens:, num_prefix_tokens:] = patches
    return index


# Kind -> a layer of `RelativePositions`.
RELATIVE_POSITIONS = {
    "none": None,
    "table": RelativePositionTable,
    "mlp": RelativePositionMlp,
    "keys": RelativePositionKeys,
}
