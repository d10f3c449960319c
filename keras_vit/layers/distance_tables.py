"""Resizing of tables of relative positions: `resize_distances`."""

import math

import numpy as np

from keras_vit.layers.resize_rules import RESIZES, multiply_axes, resize_grid


def resize_distances(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    method: str,
) -> np.ndarray:
    """Resize a table of distances to another grid of patches.

    With timm's rule for position tables, "bicubic_antialias", it is resized as
    there: the old distances become farther apart the larger they are, and the
    new ones are between them. With any other, bilinearly, as in Hugging Face.

    Shapes:
        table: (R + S, K), with a row for each of R distances and S more.
        returns: (R' + S, K).

    Args:
        table: The weight of a `RelativePositionTable`.
        old_grid: (h, w), rows and columns of its grid.
        new_grid: (h', w') of the grid to resize to.
        method: A key of RESIZES.

    Reference: transformers, BeitRelativePositionBias; timm,
        resize_rel_pos_bias_table, which is that of BEiT's fine-tuning.
    """
    if tuple(old_grid) == tuple(new_grid):
        return table
    old, new = ([2 * n - 1 for n in grid] for grid in (old_grid, new_grid))
    count = math.prod(old)
    width = table.shape[-1]
    grid = table[:count].reshape(*old, width)
    if RESIZES[method].has_growing_distances:
        rows, columns = map(_geometric_matrix, new, old)
        grid = multiply_axes(rows, grid, columns)
    else:
        grid = resize_grid(grid, new, "bilinear")
    return np.concatenate([grid.reshape(-1, width), table[count:]])


def _geometric_matrix(new, old):
    """Return the matrix (new, old) that reads between geometric distances.

    The distances 1, 1 + q, 1 + q + q^2 ... have the ratio q with which the
    largest of them is that of the new table. It is searched from 1.01 to 1.5.
    """
    steps, low, high = np.arange(old // 2), 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (ratio**steps).sum() > new // 2:
            high = ratio
        else:
            low = ratio
    far = np.cumsum(ratio**steps)
    places = np.concatenate([-far[::-1], [0], far])
    wanted = np.arange(new) - new // 2
    rows = [np.interp(wanted, places, unit) for unit in np.eye(old)]
    return np.stack(rows, axis=1)
