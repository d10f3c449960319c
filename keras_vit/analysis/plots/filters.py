"""The principal filters of the patch embedding: figure 7, left."""

import numpy as np
from matplotlib.figure import Figure

from keras_vit.analysis.embeddings import PrincipalFilters, scale_filters
from keras_vit.analysis.plots.style import SMALL, new_figure


def plot_filters(filters: PrincipalFilters, columns: int = 7) -> Figure:
    """Draw the principal filters of the patch embedding: figure 7, left.

    Each filter has its own scale. Its title is its share of the variance.

    Args:
        filters: Filters, as from `embedding_filters`.
        columns: Largest number of filters in a row.

    Raises:
        ValueError: If the filters do not have 1 or 3 channels.
    """
    pictures = np.asarray(filters.filters)
    shares = np.asarray(filters.explained_variance)
    if pictures.ndim != 4 or pictures.shape[-1] not in (1, 3):
        raise ValueError(
            "`filters` must be of 1 or 3 channels, (num, P, P, C). Received: "
            f"shape={pictures.shape}"
        )
    pictures = np.broadcast_to(
        scale_filters(pictures), (*pictures.shape[:3], 3)
    )
    count, side = len(pictures), 0.85
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = new_figure(
        max(columns * side, 2.6),
        rows * (side + 0.11) + 0.3,
        layout="compressed",
    )
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[count:]:
        axes.set_axis_off()
    for axes, picture, share in zip(panels.flat, pictures, shares):
        axes.imshow(picture, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="0.7", linewidth=0.5)
        axes.set_title(f"{share:.1%}", fontsize=SMALL, pad=2)
    figure.suptitle(
        f"{count} components, {shares.sum():.0%} of the variance",
        fontsize=SMALL + 1,
    )
    return figure
