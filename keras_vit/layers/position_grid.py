"""Resizing the grid of a position table to another number of patches."""

from keras import ops


def resize_position_grid(table, sizes: tuple):
    """Resize the leading axes of a position table.

    The interpolation is bilinear with aligned corners: row i of n' rows reads
    the old table at i (n - 1) / (n' - 1). The official code calls
    scipy.ndimage.zoom(order=1), which computes the same, except that for some
    sizes scipy writes zeros to the last row and column. Resizing to the same
    size changes nothing.

    Shapes:
        table: (n_1, ..., n_k, ...). returns: (*sizes, ...).

    Args:
        table: An array or tensor of floats.
        sizes: The new n_1 ... n_k, integers or scalar integer tensors.
    """
    for axis, size in enumerate(sizes):
        table = _resize_axis(table, size, axis)
    return table


def _resize_axis(table, size, axis):
    last = table.shape[axis] - 1
    if isinstance(size, int) and size == last + 1:
        return table
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


def is_same_size(one: tuple, other: tuple) -> bool:
    """Return whether two grid sizes are known and equal.

    In the graph of a model that accepts any image size, the sizes are symbolic
    tensors.
    """
    return all(isinstance(size, int) for size in one) and one == other
