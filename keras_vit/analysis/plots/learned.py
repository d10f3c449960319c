"""Pictures of what a model has learned."""

import numpy as np
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
    block_axis,
    check_names,
    check_shape,
    color_bar,
    draw_image,
    draw_tiles,
    families_for,
    mark_cells,
    new_figure,
    panel_size,
    plain_axes,
    plot_over_blocks,
    set_title,
    shorten,
    size_of_tiles,
)
from keras_vit.analysis.representations import artefact_tokens


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


# With more rows or columns of pictures, only every second, third, ... is drawn.
MOST_TILES = 14


def plot_position_similarity(
    similarity: np.ndarray, title: str | None = None
) -> Figure:
    """Draw the similarity of the position embeddings: figure 7, centre.

    The picture in row y and column x shows the similarity of the position
    embedding of the patch at this place to that of each patch. If there are
    more than 14 rows or columns, only every second, third, ... is drawn; the
    title states this.

    Shapes:
        similarity: (h, w, h, w), as from `position_similarity`.

    Args:
        similarity: Cosine similarities.
        title: Title of the picture.
    """
    similarity = check_shape(similarity, "similarity", 4)
    if similarity.shape[:2] != similarity.shape[2:]:
        raise ValueError(
            "`similarity` must have the shape (h, w, h, w). "
            f"Received: shape={similarity.shape}"
        )
    down, across = size_of_tiles(
        *thin_out(similarity).shape, longest=4.6, narrowest=0.25, widest=0.6
    )
    size = across + 1.5, max(down + 0.7, 1.8)
    figure = new_figure(*size, layout="compressed")
    axes = figure.subplots()
    drawn = draw_position_tiles(axes, similarity, *choose_colors(similarity))
    axes.set_xlabel("column of the patch", fontsize=SMALL)
    axes.set_ylabel("row of the patch", fontsize=SMALL)
    steps = [-(-size // MOST_TILES) for size in similarity.shape[:2]]
    thinned = " and ".join(
        f"one {name} in {step}"
        for name, step in zip(("row", "column"), steps)
        if step > 1
    )
    set_title(axes, "; ".join(text for text in (title, thinned) if text))
    color_bar(drawn, "cosine similarity", ax=axes)
    return figure


def choose_colors(similarities: np.ndarray) -> tuple[str, int]:
    """Return the colour map and the lower end of the scale for cosines."""
    return (SIGNED, -1) if similarities.min() < 0 else (MAGNITUDE, 0)


def thin_out(similarity: np.ndarray) -> np.ndarray:
    """Return the pictures to draw, at most 14 x 14."""
    rows, columns = map(_choose_places, similarity.shape[:2])
    return similarity[rows][:, columns]


def _choose_places(size):
    """Return the indices of the rows or columns to draw, evenly spaced."""
    step = -(-size // MOST_TILES)
    return np.arange((size - 1) % step // 2, size, step)


def draw_position_tiles(axes, similarity: np.ndarray, cmap: str, low: int):
    """Draw the pictures of all patches, numbered from 1; return the image.

    Args:
        axes: The axes to draw in.
        similarity: See `plot_position_similarity`.
        cmap: The colour map, see `choose_colors`.
        low: The lower end of the scale.
    """
    # Counted from 1, as in the paper.
    names = (_choose_places(size) + 1 for size in similarity.shape[:2])
    tiles = thin_out(similarity)
    return draw_tiles(axes, tiles, *names, cmap=cmap, vmin=low, vmax=1)[0]


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
    names = check_names(model_names, "model_names", 2)
    rows, columns = similarity.shape
    side = float(np.clip(3 / max(rows, columns), 0.12, 0.4))
    figure = new_figure(
        max(columns * side + 1.5, 2.5),
        max(rows * side + 0.6, 2),
        layout="compressed",
    )
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
