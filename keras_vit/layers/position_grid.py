"""Resizing the grid of a position table to another number of patches."""

from keras import ops

from keras_vit.layers.dtypes import as_floats
from keras_vit.layers.resize_rules import RESIZES
from keras_vit.tables import pick


def resize_position_grid(table, sizes: tuple, method: str = "official"):
    """Resize the leading axes of a position table.

    The default is bilinear with aligned corners: row i of n' rows reads the
    old table at i (n - 1) / (n' - 1). The official code calls
    scipy.ndimage.zoom(order=1), which computes the same, except that for some
    sizes scipy writes zeros to the last row and column. Resizing to the same
    size changes nothing.

    Shapes:
        table: (n_1, ..., n_k, ...). returns: (*sizes, ...).

    Args:
        table: An array or tensor.
        sizes: The new n_1 ... n_k, integers or scalar integer tensors.
        method: A key of RESIZES.
    """
    rule = pick(RESIZES, method, "method")
    table = as_floats(table)
    wholes = rule.whole_sizes(sizes, table.shape[: len(sizes)])
    for axis, (size, whole) in enumerate(zip(sizes, wholes)):
        is_known = isinstance(size, int) and isinstance(whole, int)
        if is_known and size == whole == table.shape[axis]:
            continue
        if rule.reads_two:
            table = _interpolate_axis(table, size, axis)
        else:
            table = _resize_axis(table, size, whole, axis, rule)
    return table


def _interpolate_axis(table, size, axis):
    """Resize as the official code does; two rows are enough for each."""
    last = table.shape[axis] - 1
    # Multiplying before dividing keeps whole positions exact.
    source = ops.arange(size, dtype="float32") * float(last)
    source = source / ops.cast(ops.maximum(size - 1, 1), "float32")
    low = ops.floor(source)
    weight = ops.cast(source - low, table.dtype)
    weight = ops.reshape(weight, (-1,) + (1,) * (len(table.shape) - axis - 1))
    low = ops.minimum(ops.cast(low, "int32"), last)
    high = ops.minimum(low + 1, last)
    return (
        ops.take(table, low, axis=axis) * (1 - weight)
        + ops.take(table, high, axis=axis) * weight
    )


def _resize_axis(table, size, whole, axis, rule):
    """Resize to the `whole` size by the matrix of a rule; keep the start."""
    old = table.shape[axis]
    if isinstance(size, int) and isinstance(whole, (int, float)):
        matrix = rule(size, old, whole)
    else:
        index = ops.arange(size, dtype="float32")
        matrix = rule.weights(index, ops.cast(whole, "float32"), old)
    matrix = ops.cast(matrix, table.dtype)  # (size, old)
    return ops.moveaxis(ops.tensordot(matrix, table, ((1,), (axis,))), 0, axis)


def read_position_grid(table, coordinates, sizes, method: str = "official"):
    """Return the rows of a resized position table at chosen patches.

    It computes the rows of `resize_position_grid`, but only those of the
    chosen patches, so each image may have a grid of its own.

    Shapes:
        table: (h, w, D).
        coordinates: (B, N, 2).
        sizes: (B, 1, 2), or broadcastable.
        returns: (B, N, D).

    Args:
        table: An array or tensor of floats.
        coordinates: Row and column of each patch, as floats.
        sizes: Rows and columns of the grid of each image, as floats.
        method: A key of RESIZES.
    """
    rule = pick(RESIZES, method, "method")
    h, w, width = table.shape
    sizes = rule.whole_sizes((sizes[..., 0], sizes[..., 1]), (h, w))
    rows = rule.weights(coordinates[..., 0], sizes[0], h)  # (B, N, h)
    columns = rule.weights(coordinates[..., 1], sizes[1], w)  # (B, N, w)
    weights = rows[..., :, None] * columns[..., None, :]  # (B, N, h, w)
    length = ops.shape(coordinates)[1]
    weights = ops.reshape(weights, (-1, length, h * w))
    flat = ops.reshape(table, (h * w, width))
    return ops.matmul(ops.cast(weights, table.dtype), flat)


def is_same_size(one: tuple, other: tuple) -> bool:
    """Return whether two grid sizes are known and equal.

    In the graph of a model that accepts any image size, the sizes are symbolic
    tensors.
    """
    return all(isinstance(size, int) for size in one) and one == other
