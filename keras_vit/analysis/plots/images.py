"""Images, grids of values over them, and marked patches."""

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from keras_vit.analysis.plots.style import MARK

OVERLAY = "inferno"  # A colour map.
LUMINANCE = (0.299, 0.587, 0.114)
# Black pixels become this grey: over black, a colour would be hard to see.
DARKEST = 60


def draw_image(axes, image: np.ndarray):
    """Draw a grey or colour image (H, W, 1 or 3)."""
    axes.imshow(
        np.broadcast_to(image, (*image.shape[:2], 3)), interpolation="nearest"
    )
    axes.set_axis_off()


def draw_overlay(
    axes,
    image: np.ndarray,
    grid: np.ndarray,
    norm: Normalize,
    patch_size: int | None,
    smooth: bool,
    opacity: float = 0.85,
):
    """Draw a grid over a grey image; return the drawn grid.

    See `plot_overlays` for the arguments.
    """
    height, width, channels = image.shape
    grey = image @ np.array(LUMINANCE if channels == 3 else (1.0,))
    grey = DARKEST + grey * (255 - DARKEST) / 255
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    h, w = grid.shape
    down, right = (
        (height, width)
        if patch_size is None
        else (h * patch_size, w * patch_size)
    )
    drawn = axes.imshow(
        grid,
        cmap=OVERLAY,
        norm=norm,
        alpha=opacity * (0.2 + 0.8 * norm(grid)),
        # The first pixel extends from -0.5 to 0.5.
        extent=(-0.5, right - 0.5, down - 0.5, -0.5),
        interpolation="bilinear" if smooth else "nearest",
    )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    axes.set_axis_off()
    return drawn


def scale_over(values: np.ndarray) -> Normalize:
    """Return the scale from the smallest to the largest value."""
    low, high = float(values.min()), float(values.max())
    if low == high:  # All are the same: a scale from 0 to this value.
        low, high = min(low, 0), max(high, 0)
    return Normalize(low, high if high > low else 1, clip=True)


def mark_cells(axes, cells, size: float, linewidth: float):
    """Draw squares around cells (x, y), each of `size` units."""
    squares = [Rectangle(size * cell - 0.5, size, size) for cell in cells]
    axes.add_collection(
        PatchCollection(
            squares, facecolor="none", edgecolor=MARK, linewidth=linewidth
        )
    )
