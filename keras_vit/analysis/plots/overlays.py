"""Values of patches, drawn over images."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from keras_vit.analysis.plots.array_checks import check_names, check_shape
from keras_vit.analysis.plots.colorbars import bar_length, percent_bar
from keras_vit.analysis.plots.images import draw_overlay, scale_over
from keras_vit.analysis.plots.style import (
    LINE,
    add_axes,
    new_figure,
    panel_size,
    set_title,
)


def plot_overlays(
    images: np.ndarray,
    grids: np.ndarray,
    titles: Sequence[str] | None = None,
    patch_size: int | None = None,
    label: str = "share of attention",
    smooth: bool = False,
    opacity: float = 0.85,
    columns: int = 4,
) -> Figure:
    """Draw a value for each patch over the images, with one common scale.

    The images are drawn in grey, so every colour represents a value.

    Shapes:
        images: (B, H, W, 1 or 3), uint8, as from `to_pixels`.
        grids: (B, h, w), such as `head_grid` of a rollout.

    Args:
        images: The images.
        grids: The values; cell (r, c) is drawn over the pixels of its patch.
        titles: The title of each image.
        patch_size: Image pixels from one patch to the next. Default: the grid
            covers the image. After a stem that pads, it may cover more.
        label: Name of the values, which are shown in percent.
        smooth: Whether to interpolate between the centres of the patches.
        opacity: Opacity of the largest values, from 0 to 1; that of the
            smallest values is a fifth of it.
        columns: Largest number of images in a row.

    Raises:
        ValueError: If the shapes do not fit each other.
    """
    images, grids = _check(images, grids)
    count = len(images)
    titles = check_names(titles, "titles", count)
    columns = min(columns, count)
    rows = -(-count // columns)
    across, down, pitch, margin = panel_size(images)
    lines = max((1 + title.count("\n") for title in titles if title), default=0)
    room = 0.1 + LINE * lines
    length = bar_length(rows * (room + down) - room, label)
    height = max(rows * (room + down), room + length) + 0.1
    figure = new_figure(columns * pitch + 0.95, height)
    norm = scale_over(grids)
    for i in range(count):
        row, column = divmod(i, columns)
        place = column * pitch + margin, row * (room + down) + room
        axes = add_axes(figure, *place, across, down)
        drawn = draw_overlay(
            axes, images[i], grids[i], norm, patch_size, smooth, opacity
        )
        set_title(axes, titles[i])
    bar_axes = add_axes(figure, columns * pitch + 0.1, room, 0.13, length)
    percent_bar(drawn, label, cax=bar_axes)
    return figure


def _check(images, grids):
    images, grids = np.asarray(images), check_shape(grids, "grids", 3)
    if (
        images.ndim != 4
        or images.shape[-1] not in (1, 3)
        or images.dtype != np.uint8
    ):
        raise ValueError(
            "`images` must be pixels (B, H, W, 1 or 3), uint8, as from "
            f"`to_pixels`. Received: shape={images.shape}, "
            f"dtype={images.dtype}"
        )
    if len(images) != len(grids):
        raise ValueError(
            "`grids` must be one for each of the images. "
            f"Received: {len(images)} images, {len(grids)} grids"
        )
    return images, grids
