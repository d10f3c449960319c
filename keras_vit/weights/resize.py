"""Resizing of position tables, patch kernels and input channels.

Every resize is linear and separable, with one matrix for each axis. RESIZES
maps the name of each rule to the function that computes its matrix.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from keras_vit.tables import pick


def official_matrix(new: int, old: int) -> np.ndarray:
    """Return the matrix of the official rule: bilinear, corners aligned.

    Position i of `new` reads i (old - 1) / (new - 1).

    Shapes: returns: (new, old).

    Args:
        new: Number of positions after resizing.
        old: Number of positions before resizing.

    Reference: scipy.ndimage.zoom(order=1), as the official code calls it.
    """
    index = np.arange(new)
    # Integer arithmetic, so that coinciding positions are copied exactly.
    low, rest = np.divmod(index * (old - 1), max(new - 1, 1))
    weight = rest / max(new - 1, 1)
    matrix = np.zeros((new, old))
    np.add.at(matrix, (index, low), 1 - weight)
    np.add.at(matrix, (index, np.minimum(low + 1, old - 1)), weight)
    return matrix


def _kernel_matrix(new, old, kernel, support, antialias):
    """Return the matrix of an interpolation kernel with half-pixel centres.

    Without antialiasing, samples beyond the border repeat the border. With
    antialiasing, the weights inside are scaled to sum to one, as in Pillow.
    """
    scale = old / new
    stretch = max(scale, 1.0) if antialias else 1.0
    centres = (np.arange(new) + 0.5) * scale - 0.5
    reach = math.ceil(support * stretch) + 1
    first = np.floor(centres).astype(int)
    matrix = np.zeros((new, old))
    for offset in range(-reach, reach + 1):
        source = first + offset
        weight = kernel((centres - source) / stretch)
        inside = (source >= 0) & (source < old)
        if antialias:
            weight = weight * inside
        np.add.at(matrix, (np.arange(new), np.clip(source, 0, old - 1)), weight)
    return matrix / matrix.sum(axis=1, keepdims=True)


def _triangle(x):
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x, a):
    """Return Keys' cubic kernel; `a` is its slope at one."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _rule(kernel, support, antialias) -> Callable:
    return functools.partial(
        _kernel_matrix, kernel=kernel, support=support, antialias=antialias
    )


RESIZES = {
    # The official code, big_vision and vit-keras.
    "official": official_matrix,
    # timm's reader of .npz, FlexiViT, tf.image.resize.
    "bilinear": _rule(_triangle, 1, antialias=False),
    # Hugging Face: PyTorch's bicubic.
    "bicubic": _rule(functools.partial(_cubic, a=-0.75), 2, antialias=False),
    # timm: PyTorch's bicubic with antialias, which is Pillow's.
    "bicubic_antialias": _rule(
        functools.partial(_cubic, a=-0.5), 2, antialias=True
    ),
    # SigLIP 2 in Hugging Face.
    "bilinear_antialias": _rule(_triangle, 1, antialias=True),
}


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
    matrix = pick(RESIZES, method, "position_resize")
    if tuple(old_grid) == tuple(new_grid):
        return table
    num_patches = math.prod(old_grid)
    prefix, grid = table[:-num_patches], table[-num_patches:]
    width = table.shape[-1]
    grid = grid.reshape(*old_grid, width).astype("float64")
    grid = np.einsum(
        "ih,hwd,jw->ijd",
        matrix(new_grid[0], old_grid[0]),
        grid,
        matrix(new_grid[1], old_grid[1]),
        optimize=True,
    )
    grid = grid.reshape(-1, width).astype(table.dtype)
    return np.concatenate([prefix, grid])


def resize_patch_kernel(
    kernel: np.ndarray, size: int, method: str
) -> np.ndarray:
    """Resize a patch kernel so that a resized patch gives the same token.

    The kernel is multiplied by the pseudo-inverse of the resize of a patch. So
    for larger patches, the enlarged image has the same tokens as the original,
    whereas a plain resize of the kernel would scale them.

    Shapes: kernel: (P, P, C, D). returns: (P', P', C, D).

    Args:
        kernel: Kernel of the patch encoder.
        size: Side P' of a patch, in pixels.
        method: Assumed rule for resizing images, a key of RESIZES: "bilinear"
            in FlexiViT, "bicubic_antialias" in timm.

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.4.
    """
    matrix = pick(RESIZES, method, "patch_resize")(size, kernel.shape[0])
    # The resize of a patch is a Kronecker product, and so is its
    # pseudo-inverse: each axis can be inverted separately.
    inverse = np.linalg.pinv(matrix).T
    resized = np.einsum(
        "ip,jq,pqcd->ijcd",
        inverse,
        inverse,
        kernel.astype("float64"),
        optimize=True,
    )
    return resized.astype(kernel.dtype)


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
