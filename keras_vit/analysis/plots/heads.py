"""The attention of each head of each block."""

import numpy as np
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure

from keras_vit.analysis.inspection import Inspection
from keras_vit.analysis.plots.colorbars import bar_length, percent_bar
from keras_vit.analysis.plots.images import draw_image, mark_cells
from keras_vit.analysis.plots.style import (
    LINE,
    MAGNITUDE,
    SMALL,
    add_axes,
    new_figure,
    panel_size,
    set_title,
    shorten,
)
from keras_vit.analysis.plots.tiles import draw_tiles, size_of_tiles
from keras_vit.analysis.rollout import read_prefix
from keras_vit.tables import pick


def plot_heads(
    inspection: Inspection,
    image: int = 0,
    query: tuple[int, int] | None = None,
    scale: str = "shared",
) -> Figure:
    """Draw where each head looks: blocks as rows, heads as columns.

    Args:
        inspection: The inspection of a model.
        image: Index of the image.
        query: (row, column) of the query patch, from 0; it is marked. Default:
            the tokens that the head of the model reads, the class token or the
            mean of the patches.
        scale: A key of SCALES: "shared" for one common scale, whose colours
            are proportional to the square root; "each" for a separate scale
            for each head, from 0 to its largest number.

    Raises:
        ValueError: If there is no such image, patch or scale.
    """
    scale_of = pick(SCALES, scale, "scale")
    grids, reader = _read_heads(inspection, image, query)
    shown, norm, label = scale_of(grids)
    down, across = size_of_tiles(
        *grids.shape, longest=8, narrowest=0.4, widest=1.1
    )
    image_across, image_down, room, margin = panel_size(inspection.pixels)
    top, left = 0.1 + 2 * LINE, room + 0.4
    length = bar_length(down, label)
    figure = new_figure(
        left + across + 1.0,
        top + max(down + 0.4, image_down + 0.1, length + 0.1),
    )
    picture = add_axes(figure, margin, top, image_across, image_down)
    draw_image(picture, inspection.pixels[image])
    set_title(picture, f"{shorten(inspection.image_names[image])}\n{reader}")
    axes = add_axes(figure, left, top, across, down)
    drawn, corners = _draw_heads(axes, shown, norm)
    if query is not None:
        row, column = query
        patch = np.array([[column, row]])
        mark_cells(picture, patch, inspection.patch_size, 1.5)
        mark_cells(axes, corners + (column, row), 1, 0.6)
    percent_bar(
        drawn,
        label,
        cax=add_axes(figure, left + across + 0.12, top, 0.13, length),
        extend="max" if shown.max() > norm.vmax else "neither",
    )
    return figure


def _draw_heads(axes, shown, norm):
    layers, heads = shown.shape[:2]
    axes.set_xlabel("head", fontsize=SMALL)
    axes.set_ylabel("block", fontsize=SMALL)
    names = range(1, layers + 1), range(1, heads + 1)
    return draw_tiles(axes, shown, *names, cmap=MAGNITUDE, norm=norm)


def _read_heads(inspection, image, query):
    """Return the attention to the patches, and the name of the query.

    Shapes:
        returns: (layers, K, h, w), and a text.
    """
    h, w = inspection.grid_size
    count, prefix = len(inspection.pixels), inspection.num_prefix_tokens
    if not 0 <= image < count:
        raise ValueError(
            f"`image` must be from 0 to {count - 1}. Received: image={image}"
        )
    maps = inspection.maps[:, image].astype("float32")  # (layers, K, T, T)
    layers, heads, length, _ = maps.shape
    if query is None:
        grids = inspection.read_grid(maps.reshape(-1, length, length))
        if inspection.reads_patches:
            reader = "mean of the patches"
        elif read_prefix(inspection.config) == (0,):
            reader = "class token"
        else:
            reader = "tokens of the head"
    else:
        row, column = query
        if not (0 <= row < h and 0 <= column < w):
            raise ValueError(
                "`query` must be the (row, column) of a patch of the grid, "
                f"{h} x {w}. Received: query={(row, column)}"
            )
        grids = maps[:, :, prefix + row * w + column, prefix:]
        reader = f"patch in row {row + 1}, column {column + 1}"
    return grids.reshape(layers, heads, h, w), reader


def _shared_scale(grids):
    # Linearly, a few large values would leave no colours for the others.
    largest = max(np.percentile(grids, 99.5), 1e-6)
    return grids, PowerNorm(0.5, 0, largest), "share of attention"


def _scale_each(grids):
    largest = grids.max(axis=(2, 3), keepdims=True)
    shares = grids / np.maximum(largest, 1e-6)
    return shares, Normalize(0, 1), "share of the largest"


SCALES = {"shared": _shared_scale, "each": _scale_each}
