"""Targets for hidden patches: their pixels or the classes of their colours.

All functions take arrays or symbolic tensors.
"""

import numpy as np
from keras import ops

from keras_vit.layers.base import wide
from keras_vit.models import ViTConfig, cut_patches

BITS = 3  # Of the colour of a channel.
SHADES = 2**BITS
SMALL_SIDE = 4  # Cells in a row of a downsized patch.
VARIANCE_EPSILON = 1e-6
# Added to means, in shades, so that rounding errors do not lower a whole shade.
# It is less than the change of a mean by one step of one pixel.
ROUNDING = 3e-5


def cut_grid(images, config: ViTConfig):
    """Return the pixels of all patches, row by row.

    Shapes:
        images: (B, H, W, C). returns: (B, N, P * P * C).
    """
    return cut_patches(images, config.patch_size)["patches"]


def join_grid(patches: np.ndarray, config: ViTConfig) -> np.ndarray:
    """Return the images of all their patches, the inverse of `cut_grid`.

    Shapes:
        patches: (B, N, P * P * C). returns: (B, H, W, C).
    """
    (rows, columns), side = config.grid_size, config.patch_size
    shape = (-1, rows, columns, side, side * config.channels)
    x = np.reshape(patches, shape).transpose(0, 1, 3, 2, 4)
    return x.reshape(-1, rows * side, columns * side, config.channels)


def patch_moments(patches):
    """Return mean and deviation of the numbers of each patch.

    Shapes:
        patches: (B, N, F). returns: (B, N, 1) both.

    Reference: the code of He et al. 2021: the variance divides by F - 1.
    """
    length = patches.shape[-1]
    mean = ops.mean(patches, axis=-1, keepdims=True)
    square = ops.sum(
        ops.square(ops.subtract(patches, mean)), axis=-1, keepdims=True
    )
    return mean, ops.sqrt(square / (length - 1) + VARIANCE_EPSILON)


def color_classes(images, config: ViTConfig, cells: int):
    """Return the class of the mean colour of each cell of each patch.

    A channel has 8 shades, the mean of its values from 0 to 255 divided by
    32. The class of red, green and blue is 64 r + 8 g + b.

    Shapes:
        images: (B, H, W, C), normalised as `config.preprocessing` says.
        returns: (B, N, cells * cells), integers below 8^C.

    Raises:
        ValueError: If a patch is not a whole number of cells.
    """
    side, channels = config.patch_size, config.channels
    if side % cells:
        raise ValueError(
            "`target` needs patches of whole cells. Received: "
            f"patch_size={side}, {cells} cells in a row"
        )
    mean, deviation = config.preprocessing.for_channels(channels)
    kind = wide(images.dtype)
    pixels = ops.multiply(images, np.array(deviation, kind))
    pixels = ops.add(pixels, np.array(mean, kind))
    patches = cut_grid(pixels, config)
    step, length = side // cells, patches.shape[1]
    shape = (-1, length, cells, step, cells, step, channels)
    means = ops.mean(ops.reshape(patches, shape), axis=(3, 5))
    shades = ops.floor(means * (255 / (256 // SHADES)) + ROUNDING)
    shades = ops.clip(shades, 0, SHADES - 1)
    powers = SHADES ** np.arange(channels - 1, -1, -1)
    powers = powers.astype(kind)
    classes = ops.sum(ops.multiply(shades, powers), axis=-1)
    classes = ops.reshape(classes, (-1, length, cells * cells))
    return ops.cast(classes, "int32")


def paint_classes(classes: np.ndarray, config: ViTConfig) -> np.ndarray:
    """Return patches in the colours of classes, normalised.

    Shapes:
        classes: (B, M, cells * cells). returns: (B, M, P * P * C).
    """
    side, channels = config.patch_size, config.channels
    cells = round(classes.shape[-1] ** 0.5)
    powers = SHADES ** np.arange(channels - 1, -1, -1)
    shades = classes[..., None] // powers % SHADES
    colors = (shades + 0.5) / SHADES  # (B, M, cells^2, C)
    mean, deviation = config.preprocessing.for_channels(channels)
    colors = (colors - np.array(mean)) / np.array(deviation)
    grid = colors.reshape(*classes.shape[:2], cells, cells, channels)
    for axis in (2, 3):
        grid = np.repeat(grid, side // cells, axis=axis)
    return grid.reshape(*classes.shape[:2], -1).astype("float32")


# Target of masked patch prediction -> cells in a row of a patch whose colours
# are predicted; None for the pixels themselves.
PATCH_TARGETS = {"mean_color": 1, "small_patch": SMALL_SIDE, "pixels": None}
