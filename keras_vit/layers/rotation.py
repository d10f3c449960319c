"""Turning pairs of features by an angle, for rotary positions."""

from keras import ops

from keras_vit.tables import pick


def rotate_pairs(x, rotation, pairs: str):
    """Turn each pair of features of queries or keys.

    (a, b) becomes (a cos - b sin, b cos + a sin).

    Shapes:
        x: (B, T, K, E).
        rotation: (2, T, 1, E) or (2, T, K, E), the cosines, then the sines.
        returns: (B, T, K, E).

    Args:
        x: Queries or keys.
        rotation: The output of a layer of ROTARY_POSITIONS.
        pairs: A key of PAIRS.

    Example:
        >>> quarter = np.stack([np.zeros((1, 1, 4)), np.ones((1, 1, 4))])
        >>> x = np.arange(1.0, 5.0).reshape(1, 1, 1, 4)
        >>> [float(y) for y in rotate_pairs(x, quarter, "halves")[0, 0, 0]]
        [-3.0, -4.0, 1.0, 2.0]

    Reference: Su et al. 2021, arXiv:2104.09864, eq. 34.
    """
    x = ops.convert_to_tensor(x)
    cosines, sines = ops.unstack(ops.cast(rotation, x.dtype), 2)
    return x * cosines + pick(PAIRS, pairs, "pairs")(x) * sines


def partners_in_halves(x):
    """Return [-b, a] for x = [a, b]."""
    first, second = ops.split(x, 2, axis=-1)
    return ops.concatenate([-second, first], axis=-1)


def partners_of_neighbours(x):
    """Return [-b, a, -d, c, ...] for x = [a, b, c, d, ...]."""
    length, heads, size = ops.shape(x)[1:]
    x = partners_in_halves(ops.reshape(x, (-1, size // 2, 2)))
    return ops.reshape(x, (-1, length, heads, size))


# A pair consists of the features i and i + E/2, or 2i and 2i + 1.
PAIRS = {"halves": partners_in_halves, "neighbours": partners_of_neighbours}
