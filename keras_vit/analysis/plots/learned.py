"""Pictures of what a model has learned."""

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from keras_vit.analysis.embeddings import PrincipalFilters, scale_filters
from keras_vit.analysis.inspection import Inspection
from keras_vit.analysis.plots.style import (
    LINE,
    MAGNITUDE,
    MARK,
    SIGNED,
    SMALL,
    add_axes,
    add_panel,
    check_shape,
    color_bar,
    draw_tiles,
    families_for,
    finish_block_axes,
    mark_cells,
    new_figure,
    panel_size,
    plot_over_blocks,
    set_title,
    shorten,
    size_of_tiles,
)
from keras_vit.analysis.representations import artefact_tokens
from keras_vit.arguments import as_texts

# With more rows or columns of pictures, only every second, third, ... is drawn.
MOST_TILES = 14
# Of a picture of token norms; the others are in the numbers alone.
MOST_IMAGES = 4


def plot_filters(filters: PrincipalFilters) -> Figure:
    """Draw the principal filters of the patch embedding: figure 7, left.

    Each filter has its own scale. Its title is its share of the variance.

    Args:
        filters: Filters, as from `embedding_filters`.

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
    columns = min(7, count)
    rows = -(-count // columns)
    size = max(columns * side, 2.6), rows * (side + 0.11) + 0.3
    figure = new_figure(*size, layout="compressed")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[count:]:
        axes.set_axis_off()
    for axes, picture, share in zip(panels.flat, pictures, shares):
        axes.imshow(picture, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="0.7", linewidth=0.5)
        axes.set_title(f"{share:.1%}", fontsize=SMALL, pad=2)
    title = f"{count} components, {shares.sum():.0%} of the variance"
    figure.suptitle(title, fontsize=SMALL + 1)
    return figure


def plot_position_similarity(similarity: np.ndarray) -> Figure:
    """Draw the similarity of the position embeddings: figure 7, centre.

    The picture in row y and column x shows the similarity of the position
    embedding of the patch at this place to that of each patch. If there are
    more than 14 rows or columns, only every second, third, ... is drawn; the
    title states this.

    Shapes:
        similarity: (h, w, h, w), as from `position_similarity`.

    Args:
        similarity: Cosine similarities.
    """
    similarity = check_shape(similarity, "similarity", 4)
    h, w = similarity.shape[:2]
    if similarity.shape[2:] != (h, w):
        raise ValueError(
            "`similarity` must have the shape (h, w, h, w). "
            f"Received: shape={similarity.shape}"
        )
    rows, columns = _choose_places(h), _choose_places(w)
    shape = (len(rows), len(columns), h, w)
    down, across = size_of_tiles(
        *shape, longest=4.6, narrowest=0.25, widest=0.6
    )
    size = across + 1.5, max(down + 0.7, 1.8)
    figure = new_figure(*size, layout="compressed")
    axes = figure.subplots()
    is_signed = similarity.min() < 0
    drawn, _ = draw_tiles(
        axes,
        similarity[rows][:, columns],
        rows + 1,
        columns + 1,
        SIGNED if is_signed else MAGNITUDE,
        Normalize(-1 if is_signed else 0, 1),
    )
    axes.set_xlabel("column of the patch", fontsize=SMALL)
    axes.set_ylabel("row of the patch", fontsize=SMALL)
    steps = {"row": -(-h // MOST_TILES), "column": -(-w // MOST_TILES)}
    thinned = [f"one {k} in {step}" for k, step in steps.items() if step > 1]
    set_title(axes, " and ".join(thinned))
    color_bar(drawn, "cosine similarity", ax=axes)
    return figure


def _choose_places(size):
    """Return the indices of the rows or columns to draw, evenly spaced."""
    step = -(-size // MOST_TILES)
    return np.arange((size - 1) % step // 2, size, step)


def plot_representation_similarity(
    similarity: np.ndarray, model_names: tuple[str, str] = ("a", "b")
) -> Figure:
    """Draw the similarity of the tokens after the blocks of two models.

    Shapes:
        similarity: (blocks of a, blocks of b), from
            `representation_similarity`.

    Args:
        similarity: Linear CKA, at most 1; values below 0 are drawn as 0.
        model_names: The names of the two models.
    """
    similarity = check_shape(similarity, "similarity", 2)
    names = as_texts(model_names, "model_names", 2)
    rows, columns = similarity.shape
    side = float(np.clip(3 / max(rows, columns), 0.12, 0.4))
    size = max(columns * side + 1.5, 2.5), max(rows * side + 0.6, 2.3)
    figure = new_figure(*size, layout="compressed")
    axes = figure.subplots()
    drawn = axes.imshow(
        similarity,
        cmap=MAGNITUDE,
        vmin=0,
        vmax=1,
        origin="lower",
        # The middle of the first block is at 1.
        extent=(0.5, columns + 0.5, 0.5, rows + 0.5),
    )
    for axis, name in ((axes.yaxis, names[0]), (axes.xaxis, names[1])):
        text = f"block of {shorten(name)}"
        axis.set_label_text(
            text, fontsize=SMALL, parse_math=False, family=families_for(text)
        )
        axis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=SMALL)
    color_bar(drawn, "linear CKA", ax=axes)
    return figure


def plot_token_norms(inspection: Inspection, block: int = -1) -> Figure:
    """Draw the norms of the tokens by depth, and mark the outliers.

    On the left are the norms of the patches of all images, their median, and
    the norm of the class token, if there is one. On the right are the first
    four images, with marks on the patches that `artefact_tokens` finds after
    one block.

    Args:
        inspection: The inspection of a model.
        block: Index of the block for the marks; negative indices count from
            the end.

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
    found = artefact_tokens(norms, inspection.num_prefix_tokens)
    pixels = inspection.pixels[:MOST_IMAGES]
    pitch, down = panel_size(pixels)
    top = 0.1 + 2 * LINE
    start = 3.8  # Left end of the images, in inches.
    size = start + len(pixels) * pitch, top + max(down + 0.1, 2.4)
    figure = new_figure(*size)
    axes = add_axes(figure, 0.55, top, 2.9, 1.9)
    _draw_norms(axes, inspection, found)
    axes.axvline(block + 1, color="0.7", lw=1, ls=":", zorder=0)
    columns = inspection.grid_size[1]
    for i, image in enumerate(pixels):
        cells = np.flatnonzero(found[block, i])
        title = (
            f"{shorten(inspection.image_names[i])}\n{len(cells)} of "
            f"{found.shape[-1]} behind block {block + 1}"
        )
        axes = add_panel(figure, start + i * pitch, top, image, title)
        places = np.stack([cells % columns, cells // columns], axis=-1)
        mark_cells(axes, places, inspection.patch_size, 1.2)
    return figure


def _draw_norms(axes, inspection, found):
    """Draw the norms of the tokens over the blocks."""
    norms = inspection.token_norms  # (layers, B, T)
    layers = len(norms)
    blocks = np.arange(1, layers + 1)
    patches = norms[..., inspection.num_prefix_tokens :].reshape(layers, -1)
    low, middle, high = np.percentile(patches, (5, 50, 95), axis=1)
    # A bar half as wide as its place, if there is only one block.
    across = blocks if layers > 1 else blocks + [-0.25, 0.25]
    band = {"color": "tab:blue", "alpha": 0.2, "lw": 0}
    axes.fill_between(across, low, high, label="90 % of the patches", **band)
    plot_over_blocks(axes, middle, color="tab:blue", label="their median")
    if inspection.config.use_class_token:
        token = norms[..., 0].mean(axis=1)
        plot_over_blocks(axes, token, color="tab:orange", label="class token")
    where, which = np.nonzero(found.reshape(layers, -1))
    if len(where):
        axes.scatter(
            blocks[where],
            patches[where, which],
            s=6,
            color=MARK,
            label="over 3 medians",
            zorder=3,
        )
    axes.set(ylabel="length of a token", ylim=(0, None))
    finish_block_axes(axes, layers, fontsize=SMALL - 1)
