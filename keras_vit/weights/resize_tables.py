"""Adapting stored arrays to a model of other sizes, channels or images."""

import math

import numpy as np

from keras_vit.layers.resize import RESIZES, resize_grid
from keras_vit.preprocessing.description import Preprocessing
from keras_vit.tables import pick


def resize_positions(
    table: np.ndarray, old_grid: tuple, new_grid: tuple, method: str
) -> np.ndarray:
    """Resize the rows of a position table to another grid of patches.

    Shapes: table: (T, D), the rows of the patches last. returns: (T', D).

    Args:
        table: Position embeddings; rows before the grid are kept.
        old_grid: (h, w) of the table.
        new_grid: (h, w) to resize to.
        method: A key of RESIZES.

    Example:
        >>> table = np.array([[9.0], [0.0], [1.0], [2.0]])
        >>> resize_positions(table, (1, 3), (1, 5), "official").ravel().tolist()
        [9.0, 0.0, 0.5, 1.0, 1.5, 2.0]
    """
    pick(RESIZES, method, "position_resize")  # Raises if unknown.
    if tuple(old_grid) == tuple(new_grid):
        return table
    num_patches = math.prod(old_grid)
    prefix, grid = table[:-num_patches], table[-num_patches:]
    width = table.shape[-1]
    grid = resize_grid(grid.reshape(*old_grid, width), new_grid, method)
    return np.concatenate([prefix, grid.reshape(-1, width)])


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Change the number of input channels of the first kernel.

    For one channel, the kernels of all channels are summed, so a grey image
    gives the same result as its copies in all channels. For other numbers, the
    channels are repeated cyclically and scaled, so that the sum over the
    channels keeps its size approximately.

    Shapes: kernel: (P, P, C, D). returns: (P, P, C', D).

    Args:
        kernel: Kernel of the patch encoder or of the first convolution of a
            stem.
        channels: Number C' of input channels.
    """
    old = kernel.shape[2]
    if channels == old:
        return kernel
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    turn = np.arange(channels) % old
    return kernel[:, :, turn] * kernel.dtype.type(old / channels)


# For pixels p as fractions of 255, the source reads (p - m) / d and the model
# (p - m') / d' =: u. So p = u d' + m', and the source computes
#     sum_c W_c (u_c d'_c + m'_c - m_c) / d_c + b,
# which is a projection of u with other kernels and another bias.


def renormalize_kernel(
    kernel: np.ndarray, theirs: Preprocessing, ours: Preprocessing
) -> np.ndarray:
    """Return the kernel for images of another normalisation.

    Shapes:
        kernel: (P, P, C, D). returns: the same.

    Args:
        kernel: The kernel of the source.
        theirs: Settings of the source.
        ours: Settings of the model.
    """
    scale = np.divide(ours.deviation, theirs.deviation)
    return kernel * np.reshape(scale, (-1, 1)).astype(kernel.dtype)


def constant_of(
    kernel: np.ndarray, theirs: Preprocessing, ours: Preprocessing
) -> np.ndarray:
    """Return the change of the bias for images of another normalisation.

    Shapes:
        kernel: (P, P, C, D). returns: (D,).

    Args:
        kernel: The kernel of the source.
        theirs: Settings of the source.
        ours: Settings of the model.
    """
    offset = np.subtract(ours.mean, theirs.mean) / theirs.deviation
    offset = np.broadcast_to(offset, kernel.shape[2:3])
    sums = kernel.sum(axis=(0, 1), dtype="float64")  # (C, D)
    return (offset @ sums).astype(kernel.dtype)
