"""Fewer tokens: some patches taken, dropped in training, or merged."""

import keras
import numpy as np
from keras import ops

from keras_vit.arguments import as_rate, as_whole
from keras_vit.layers.base import Layer, wide


def take_tokens(tokens, indices):
    """Return the tokens of these indices, which differ between images.

    Shapes:
        tokens: (B, T, ...).
        indices: (B, S), integers from 0 to T - 1.
        returns: (B, S, ...).
    """
    # One gather of rows: Keras' take_along_axis gathers single numbers.
    batch, length = ops.shape(tokens)[:2]
    rest = tuple(tokens.shape[2:])
    rows = ops.reshape(tokens, (-1, *rest))  # (B*T, ...)
    starts = ops.arange(batch, dtype="int32") * length
    flat = ops.cast(indices, "int32") + ops.expand_dims(starts, -1)
    taken = ops.take(rows, ops.reshape(flat, (-1,)), axis=0)  # (B*S, ...)
    return ops.reshape(taken, (-1, indices.shape[1], *rest))


@keras.saving.register_keras_serializable(package="keras_vit")
class TakeTokens(Layer):
    """Take tokens by their indices, see `take_tokens`.

    Example:
        >>> tokens = np.array([[[1.0], [2.0], [3.0]]], "float32")
        >>> take = layers.fewer_tokens.TakeTokens()
        >>> np.array(take(tokens, np.array([[2, 0]]))).ravel().tolist()
        [3.0, 1.0]
    """

    def call(self, tokens, indices):
        return take_tokens(tokens, indices)

    def compute_output_spec(self, tokens, indices):
        shape = (tokens.shape[0], indices.shape[1], *tokens.shape[2:])
        return keras.KerasTensor(shape, tokens.dtype)


def _take_bias(bias, indices):
    """Return (B, K, S, S) of (1, K, T, T)."""
    heads, length = bias.shape[1], bias.shape[-1]
    pairs = indices[:, :, None] * length + indices[:, None, :]  # (B, S, S)
    flat = ops.reshape(bias, (heads, length * length))
    return ops.transpose(ops.take(flat, pairs, axis=1), (1, 0, 2, 3))


# Argument of a block -> what it is for the tokens of these indices (B, S).
# Relative keys have no row: they belong to a whole grid.
TAKERS = {
    # (2, B, S, K, E) of (2, T, K, E).
    "rotation": lambda rotation, indices: ops.take(rotation, indices, axis=1),
    "bias": _take_bias,
    # (B, S, D) of (1, T, D).
    "position_rows": lambda rows, indices: ops.take(rows[0], indices, axis=0),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(Layer):
    """Leave out random patches of each image in training.

    A step then costs about as much less as it has fewer tokens. The tokens
    before the patches always stay, and in inference all do.

    Shapes:
        tokens: (B, T, D).
        positions: argument of a block -> name -> its tensor for all tokens,
            see TAKERS; None for none.
        returns: the tokens, or both, in training for S = P + int((1 - rate) *
            N) tokens, at least P + 1.

    Args:
        rate: Share in [0, 1) of the patches that are left out.
        num_prefix_tokens: Number P of tokens before the N patches.
        seed: Random seed, an integer or None.

    Example:
        >>> drop = layers.PatchDropout(rate=0.5, num_prefix_tokens=1)
        >>> tuple(drop(np.ones((2, 17, 24)), training=True).shape)
        (2, 9, 24)

    Reference: Liu et al. 2022, PatchDropout, arXiv:2208.07220; Li et al. 2022,
        FLIP, arXiv:2212.00794; the number is that of timm's PatchDropout.
    """

    def __init__(
        self,
        rate: float,
        num_prefix_tokens: int = 1,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.rate = as_rate(rate, "rate")
        self.num_prefix_tokens = as_whole(
            num_prefix_tokens, "num_prefix_tokens", least=0
        )
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, tokens, positions=None, training=None):
        if not training or self.rate == 0:
            return tokens if positions is None else (tokens, positions)
        prefix = self.num_prefix_tokens
        batch, length = ops.shape(tokens)[0], tokens.shape[1]
        noise = keras.random.uniform(
            (batch, length - prefix), dtype="float32", seed=self.seed_generator
        )
        count = max(int((1 - self.rate) * (length - prefix)), 1)
        order = ops.cast(ops.argsort(noise, axis=-1), "int32")[:, :count]
        first = ops.broadcast_to(ops.arange(prefix), (batch, prefix))
        indices = ops.concatenate([first, order + prefix], axis=1)  # (B, S)
        tokens = take_tokens(tokens, indices)
        if positions is None:
            return tokens
        return tokens, {
            argument: {
                name: TAKERS[argument](x, indices) for name, x in row.items()
            }
            for argument, row in positions.items()
        }

    def compute_output_spec(self, tokens, positions=None, training=None):
        kept = tokens if positions is None else (tokens, positions)
        return keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, x.dtype), kept
        )


def size_bias(sizes):
    """Return what gives tokens attention in proportion to their sizes.

    Shapes:
        sizes: (B, T, 1). returns: (B, 1, 1, T), see `attention.attend`.
    """
    bias = ops.log(ops.cast(sizes, wide(sizes.dtype)))
    return ops.transpose(bias, (0, 2, 1))[:, None]


def count_merged(length: int, num_merged: int, num_prefix_tokens: int) -> int:
    """Return how many tokens are merged: at most half of the patches.

    Args:
        length: Number of tokens.
        num_merged: Number of tokens to merge, if there are enough.
        num_prefix_tokens: Number of tokens before the patches.
    """
    return min(num_merged, (length - num_prefix_tokens) // 2)


def merge_tokens(tokens, sizes, keys, num_merged: int, num_prefix_tokens: int):
    """Merge the patches whose keys are most alike, each pair to its mean.

    The tokens are split into those of even and of odd places. Each token of
    the first half that has the most similar partner in the other becomes part
    of it. The tokens before the patches stay as they are.

    Shapes:
        tokens: (B, T, D). sizes: (B, T, 1), how many patches each stands for.
        keys: (B, T, E), what is compared, by the cosine.
        returns: (B, T - R, D) and (B, T - R, 1): the tokens before the
            patches, the others of the first half, and the second half.

    Args:
        tokens: The tokens.
        sizes: Their sizes, by which means are weighed.
        keys: Their keys.
        num_merged: Number R of tokens to merge; at most half of the patches.
        num_prefix_tokens: Number of tokens before the patches.

    Reference: Bolya et al. 2023, Token Merging, arXiv:2210.09461, section 3.
    """
    length, prefix = tokens.shape[1], num_prefix_tokens
    num_merged = count_merged(length, num_merged, prefix)
    if not num_merged:
        return tokens, sizes
    kind = wide(tokens.dtype)
    keys = ops.cast(keys, kind)
    keys = keys / ops.maximum(ops.norm(keys, axis=-1, keepdims=True), 1e-6)
    # The patches from the first one at an even place of all tokens.
    # TensorFlow takes longer for `keys[:, even::2]`.
    even = np.arange(prefix + prefix % 2, length, 2, "int32")
    odd = np.arange(prefix + 1 - prefix % 2, length, 2, "int32")
    likeness = ops.matmul(
        ops.take(keys, even, axis=1),
        ops.transpose(ops.take(keys, odd, axis=1), (0, 2, 1)),
    )  # (B, E, O)
    # Converters to other formats know `top_k` and comparisons, but not
    # `argmax`, `argsort` and `one_hot`.
    best, partners = ops.top_k(likeness, 1)  # (B, E, 1)
    _, merged = ops.top_k(best[..., 0], num_merged)  # (B, R)
    merged, partners = (
        ops.cast(x, "int32") for x in (merged, partners[..., 0])
    )
    count = likeness.shape[1]
    places = ops.arange(count, dtype="int32")
    is_merged = ops.any(merged[:, None] == places[:, None], axis=-1)  # (B, E)
    # Those that stay, in their order, and then the others: no two of these
    # numbers are equal.
    ranks = ops.cast(is_merged, "float32") * count
    ranks = ranks + ops.cast(places, "float32")
    _, order = ops.top_k(-ranks, count)
    partners = take_tokens(partners, order[:, count - num_merged :])
    # (B, O, R): which of the odd places each of the others belongs to.
    places = ops.arange(likeness.shape[2], dtype="int32")
    into = ops.cast(partners[:, None] == places[:, None], kind)
    order = even[0] + 2 * ops.cast(order, "int32")  # Among all tokens.
    first, second = take_tokens(tokens, order), ops.take(tokens, odd, axis=1)
    kept, gone = first[:, : count - num_merged], first[:, count - num_merged :]
    sizes = ops.cast(sizes, kind)
    own_sizes = take_tokens(sizes, order)  # (B, E, 1)
    kept_sizes = own_sizes[:, : count - num_merged]
    gone_sizes = ops.transpose(own_sizes[:, count - num_merged :], (0, 2, 1))
    old_sizes = ops.take(sizes, odd, axis=1)
    into = into * gone_sizes  # (B, O, R)
    new_sizes = old_sizes + ops.sum(into, axis=-1, keepdims=True)
    # The means, as a product: TensorFlow takes longer to multiply each token
    # by a number.
    is_own = ops.cast(places[:, None] == places, kind)
    shares = ops.concatenate([is_own * old_sizes, into], axis=-1) / new_sizes
    means = ops.matmul(
        ops.cast(shares, tokens.dtype), ops.concatenate([second, gone], axis=1)
    )
    # TFLite's kernels refuse tensors without numbers.
    parts = [
        (tokens[:, :prefix], sizes[:, :prefix]),
        (kept, kept_sizes),
        (means, new_sizes),
    ]
    parts = zip(*(pair for pair in parts if pair[0].shape[1]))
    tokens, sizes = (ops.concatenate([*part], axis=1) for part in parts)
    return tokens, ops.cast(sizes, tokens.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenSizes(Layer):
    """Return how many patches each new token stands for: one.

    Shapes:
        tokens: (B, T, D). returns: (B, T, 1), all 1.
    """

    def call(self, tokens):
        return ops.ones_like(tokens[..., :1])

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], 1)
