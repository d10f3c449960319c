"""The norms of the tokens by depth, and the places of the artefacts."""

import numpy as np
from matplotlib.figure import Figure

from keras_vit.analysis.inspection import Inspection
from keras_vit.analysis.plots.images import draw_image, mark_cells
from keras_vit.analysis.plots.style import (
    LINE,
    MARK,
    SMALL,
    add_axes,
    block_axis,
    new_figure,
    panel_size,
    plain_axes,
    plot_over_blocks,
    set_title,
    shorten,
)
from keras_vit.analysis.representations import artefact_tokens


def plot_token_norms(
    inspection: Inspection,
    block: int = -1,
    ratio: float = 3.0,
    most_images: int = 4,
) -> Figure:
    """Draw the norms of the tokens by depth, and mark the outliers.

    On the left are the norms of the patches of all images, their median, and
    the norm of the class token. On the right are the images, with marks on the
    patches that `artefact_tokens` finds after one block.

    Args:
        inspection: The inspection of a model.
        block: Index of the block for the marks; negative indices count from
            the end.
        ratio: See `artefact_tokens`.
        most_images: Largest number of images to draw.

    Raises:
        ValueError: If there is no such block.
    """
    norms = inspection.token_norms  # (layers, B, T)
    layers = len(norms)
    if not -layers <= block < layers:
        raise ValueError(
            f"`block` must be from {-layers} to {layers - 1}. "
            f"Received: block={block}"
        )
    block %= layers
    found = artefact_tokens(norms, inspection.num_prefix_tokens, ratio)
    count = min(len(inspection.pixels), most_images)
    _, down, pitch, _ = panel_size(inspection.pixels)
    top = 0.1 + 2 * LINE
    start = 3.8  # Left end of the images, in inches.
    figure = new_figure(start + count * pitch, top + max(down + 0.1, 2.4))
    axes = add_axes(figure, 0.55, top, 2.9, 1.9)
    _draw_lengths(axes, norms, inspection.num_prefix_tokens, found, ratio)
    axes.axvline(block + 1, color="0.7", lw=1, ls=":", zorder=0)
    for i in range(count):
        place = start + i * pitch, top
        _draw_artefacts(figure, place, inspection, i, block, found[block, i])
    return figure


def _draw_lengths(axes, norms, num_prefix_tokens, found, ratio):
    """Draw the norms of the tokens over the blocks.

    Shapes:
        norms: (layers, B, T). found: (layers, B, N).
    """
    layers = len(norms)
    blocks = np.arange(1, layers + 1)
    patches = norms[..., num_prefix_tokens:].reshape(layers, -1)
    low, middle, high = np.percentile(patches, (5, 50, 95), axis=1)
    # A bar half as wide as its place, if there is only one block.
    across = blocks if layers > 1 else blocks + [-0.25, 0.25]
    band = {"color": "tab:blue", "alpha": 0.2, "lw": 0}
    axes.fill_between(across, low, high, label="90 % of the patches", **band)
    median = {"color": "tab:blue", "label": "their median"}
    plot_over_blocks(axes, blocks, middle, **median)
    if num_prefix_tokens:
        token = norms[..., 0].mean(axis=1)
        style = {"color": "tab:orange", "label": "class token"}
        plot_over_blocks(axes, blocks, token, **style)
    where, which = np.nonzero(found.reshape(layers, -1))
    if len(where):
        axes.scatter(
            blocks[where],
            patches[where, which],
            s=6,
            color=MARK,
            label=f"over {ratio:g} medians",
            zorder=3,
        )
    block_axis(axes, blocks)
    axes.set(ylabel="length of a token", ylim=(0, None))
    plain_axes(axes)
    axes.legend(frameon=False, fontsize=SMALL - 1)


def _draw_artefacts(figure, place, inspection, image, block, found):
    """Draw an image with its artefacts marked.

    Shapes:
        found: (N,).
    """
    across, down, _, margin = panel_size(inspection.pixels)
    x, y = place
    axes = add_axes(figure, x + margin, y, across, down)
    draw_image(axes, inspection.pixels[image])
    cells = np.flatnonzero(found)
    columns = inspection.grid_size[1]
    places = np.stack([cells % columns, cells // columns], axis=-1)
    mark_cells(axes, places, inspection.patch_size, 1.2)
    set_title(
        axes,
        f"{shorten(inspection.image_names[image])}\n{len(cells)} of "
        f"{len(found)} behind block {block + 1}",
    )
