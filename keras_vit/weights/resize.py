"""Resizing of stored position tables, and of kernels to other channels."""

import math

import numpy as np

from keras_vit.layers.resize import RESIZES, resize_grid
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
