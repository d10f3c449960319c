"""The attention distance of each head, by depth: figure 7, right."""

import numpy as np
from matplotlib.figure import Figure

from keras_vit.analysis.plots.array_checks import check_shape
from keras_vit.analysis.plots.style import (
    SMALL,
    block_axis,
    new_figure,
    plain_axes,
    plot_over_blocks,
)


def plot_distances(
    distances: np.ndarray,
    grid_size: tuple[int, int],
    patch_size: int,
    num_prefix_tokens: int = 0,
) -> Figure:
    """Draw the attention distance of each head, by depth: figure 7, right.

    Each dot is a head. Lines show the mean of each block, the longer side of
    the image, and the distance of a head that attends equally to all tokens.

    Shapes:
        distances: (layers, K), in pixels, as from `attention_distances`.

    Args:
        distances: The attention distance of each head.
        grid_size: (h, w), rows and columns of the grid of patches.
        patch_size: Image pixels from one patch to the next.
        num_prefix_tokens: 1 with a class token. Attention to it counts as
            distance 0, so the distance of equal attention is slightly smaller.
            0 for distances that were computed with `renormalize`.
    """
    distances = check_shape(distances, "distances", 2)
    layers, heads = distances.shape
    side = patch_size * max(grid_size)
    blocks = np.arange(1, layers + 1)
    figure = new_figure(max(4, 2.8 + 0.2 * layers), 3.2, layout="compressed")
    axes = figure.subplots()
    _draw_references(axes, side, grid_size, patch_size, num_prefix_tokens)
    means = distances.mean(axis=1)
    plot_over_blocks(
        axes, blocks, means, color="tab:orange", lw=1.5, label="mean"
    )
    axes.scatter(
        np.repeat(blocks, heads),
        distances.ravel(),
        s=14,
        color="tab:blue",
        alpha=0.65,
        linewidths=0,
        label="head",
        zorder=3,
        clip_on=False,
    )
    block_axis(axes, blocks)
    axes.set(
        ylabel="mean attention distance (px)",
        ylim=(0, 1.12 * max(side, distances.max())),
    )
    plain_axes(axes)
    axes.legend(
        frameon=False,
        fontsize=SMALL,
        ncols=2,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderpad=0,
    )
    return figure


def _draw_references(axes, side, grid_size, patch_size, num_prefix_tokens):
    """Draw the side of the image, and the distance of equal attention."""
    places = patch_size * np.indices(grid_size).reshape(2, -1).T
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    alike = apart.sum(axis=1).mean() / (len(places) + num_prefix_tokens)
    given = "tokens" if num_prefix_tokens else "patches"
    for value, style, text in (
        (side, "--", f"side of the\nimage, {side} px"),
        (alike, ":", f"all {given}\nalike, {alike:.3g} px"),
    ):
        axes.axhline(value, color="0.6", lw=1, ls=style)
        axes.annotate(
            text,
            (1.02, value),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=SMALL - 1,
            color="0.4",
        )
