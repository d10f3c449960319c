"""Pictures of where a model looks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from keras_vit.analysis.attention import patch_distances
from keras_vit.analysis.inspection import Inspection
from keras_vit.analysis.plots.style import (
    BAR,
    LINE,
    MAGNITUDE,
    SMALL,
    add_axes,
    add_panel,
    bar_length,
    check_shape,
    draw_tiles,
    finish_block_axes,
    mark_cells,
    new_figure,
    panel_size,
    percent_bar,
    plot_over_blocks,
    scale_over,
    shorten,
    size_of_tiles,
)
from keras_vit.analysis.rollout import head_tokens
from keras_vit.arguments import as_texts

ATTENTION, RELEVANCE = "share of attention", "share of relevance"


def plot_heads(
    inspection: Inspection,
    image: int = 0,
    query: tuple[int, int] | None = None,
) -> Figure:
    """Draw where each head looks: blocks as rows, heads as columns.

    All heads have one scale, whose colours are proportional to the square
    root of the attention.

    Args:
        inspection: The inspection of a model.
        image: Index of the image.
        query: (row, column) of the query patch, from 0; it is marked. Default:
            the tokens that the head of the model reads, the class token or the
            mean of the patches.

    Raises:
        ValueError: If there is no such image or patch.
    """
    grids, reader = _read_heads(inspection, image, query)
    layers, heads, *_ = grids.shape
    down, across = size_of_tiles(
        *grids.shape, longest=8, narrowest=0.4, widest=1.1
    )
    pitch, image_down = panel_size(inspection.pixels)
    top, left = 0.1 + 2 * LINE, pitch + 0.28
    length = bar_length(down, ATTENTION)
    height = top + max(down + 0.4, image_down + 0.1, length + 0.1)
    figure = new_figure(left + across + BAR + 0.1, height)
    title = f"{shorten(inspection.image_names[image])}\n{reader}"
    picture = add_panel(figure, 0, top, inspection.pixels[image], title)
    axes = add_axes(figure, left, top, across, down)
    axes.set_xlabel("head", fontsize=SMALL)
    axes.set_ylabel("block", fontsize=SMALL)
    # Linearly, a few large values would leave no colours for the others.
    norm = PowerNorm(0.5, 0, max(np.percentile(grids, 99.5), 1e-6))
    names = range(1, layers + 1), range(1, heads + 1)
    drawn, corners = draw_tiles(axes, grids, *names, MAGNITUDE, norm)
    if query is not None:
        row, column = query
        patch = np.array([[column, row]])
        mark_cells(picture, patch, inspection.patch_size, 1.5)
        mark_cells(axes, corners + (column, row), 1, 0.6)
    extend = "max" if grids.max() > norm.vmax else "neither"
    place = left + across + 0.12, top, length
    percent_bar(drawn, ATTENTION, *place, extend=extend)
    return figure


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
        tokens = head_tokens(inspection.config)
        reader = {(): "mean of the patches", (0,): "class token"}.get(
            tokens, "tokens of the head"
        )
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


def plot_readings(inspection: Inspection) -> Figure:
    """Draw the rollout, and the relevance for the most likely classes.

    Each image has a row. All rollouts share one scale. All relevances share
    another one, after dividing each by its sum. If no patch supports a class,
    the title states this; if this holds for all classes, relevance has no
    colour bar.

    Args:
        inspection: The inspection of a model.
    """
    pixels = inspection.pixels
    count = len(pixels)
    relevances, unsupported = _read_relevances(inspection)
    ranks = relevances.shape[1]
    rollouts = inspection.read_grid(inspection.rollouts)
    of_rollouts = scale_over(rollouts)
    # Classes that no patch supports do not change the scale.
    supported = relevances[~unsupported]
    of_relevances = scale_over(supported if supported.size else np.zeros(1))
    pitch, down = panel_size(pixels)
    room = 0.1 + (3 if unsupported.any() else 2) * LINE
    bars = 2 if supported.size else 1
    length = bar_length(count * (room + down) - room, RELEVANCE)
    height = max(count * (room + down), room + length) + 0.1
    figure = new_figure((2 + ranks) * pitch + bars * BAR, height)
    for i in range(count):
        y = i * (room + down) + room
        title = shorten(inspection.image_names[i])
        place, colon, rest = inspection.image_names[i].partition(": ")
        if title != inspection.image_names[i] and colon:
            title = f"{place}:\n{shorten(rest)}"
        add_panel(figure, 0, y, pixels[i], title)
        columns = [("rollout", rollouts[i], of_rollouts)]
        for rank in range(ranks):
            index = inspection.top_classes[i, rank]
            share = inspection.probabilities[i, index]
            title = f"{shorten(inspection.class_name(index))}\n{share:.1%}"
            if unsupported[i, rank]:
                title += "\nno patch supports it"
            columns.append((title, relevances[i, rank], of_relevances))
        drawn = [
            add_panel(
                figure,
                j * pitch,
                y,
                pixels[i],
                *column,
                inspection.patch_size,
            ).images[1]
            for j, column in enumerate(columns, 1)
        ]
    for j, label in enumerate((ATTENTION, RELEVANCE)[:bars]):
        x = (2 + ranks) * pitch + j * BAR
        percent_bar(drawn[j], label, x, room, length)
    return figure


def _read_relevances(inspection):
    """Return the relevance for each rank, and where no patch supports it.

    Shapes:
        returns: (B, k, h, w), each with the sum 1 or 0; and (B, k).
    """
    h, w = inspection.grid_size
    matrices = inspection.relevances
    if matrices is None:
        matrices = np.zeros((len(inspection.pixels), 0, 1, 1))
        return np.zeros((*matrices.shape[:2], h, w)), matrices[..., 0, 0] > 0
    shape = (*matrices.shape[:2], h, w)
    matrices = matrices.reshape(-1, *matrices.shape[2:])
    grids = inspection.read_grid(matrices)
    # Relevance starts from the identity, which is subtracted here.
    changes = matrices - np.eye(matrices.shape[-1], dtype="float32")
    unsupported = ~inspection.read_grid(changes).any(axis=(1, 2))
    grids = np.where(unsupported[:, None, None], 0, grids)
    total = grids.sum(axis=(1, 2), keepdims=True)
    grids = grids / np.where(total > 0, total, 1)
    return grids.reshape(shape), unsupported.reshape(shape[:2])


def plot_overlays(
    images: np.ndarray,
    grids: np.ndarray,
    titles: Sequence[str] | None = None,
    patch_size: int | None = None,
    label: str = ATTENTION,
) -> Figure:
    """Draw a value for each patch over the images, with one common scale.

    The images are drawn in grey, so every colour represents a value; four are
    in a row.

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

    Raises:
        ValueError: If the shapes do not fit each other.
    """
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
    count = len(images)
    if count != len(grids):
        raise ValueError(
            "`grids` must be one for each of the images. "
            f"Received: {count} images, {len(grids)} grids"
        )
    titles = as_texts(titles or [""] * count, "titles", count)
    columns = min(4, count)
    rows = -(-count // columns)
    pitch, down = panel_size(images)
    lines = max((1 + title.count("\n") for title in titles if title), default=0)
    room = 0.1 + LINE * lines
    length = bar_length(rows * (room + down) - room, label)
    height = max(rows * (room + down), room + length) + 0.1
    figure = new_figure(columns * pitch + BAR, height)
    norm = scale_over(grids)
    for i in range(count):
        row, column = divmod(i, columns)
        place = column * pitch, row * (room + down) + room
        values = grids[i], norm, patch_size
        axes = add_panel(figure, *place, images[i], titles[i], *values)
    percent_bar(axes.images[1], label, columns * pitch + 0.1, room, length)
    return figure


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
        num_prefix_tokens: Number of tokens before the patches: the class token
            and registers. Attention to them counts as distance 0, so the
            distance of equal attention is slightly smaller. 0 for distances
            that were computed with `renormalize`.
    """
    distances = check_shape(distances, "distances", 2)
    layers, heads = distances.shape
    side = patch_size * max(grid_size)
    apart = patch_distances(grid_size, patch_size)
    alike = apart.sum(axis=1).mean() / (len(apart) + num_prefix_tokens)
    given = "tokens" if num_prefix_tokens else "patches"
    figure = new_figure(max(4, 2.8 + 0.2 * layers), 3.2, layout="compressed")
    axes = figure.subplots()
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
    means = distances.mean(axis=1)
    plot_over_blocks(axes, means, color="tab:orange", lw=1.5, label="mean")
    axes.scatter(
        np.repeat(np.arange(1, layers + 1), heads),
        distances.ravel(),
        s=14,
        color="tab:blue",
        alpha=0.65,
        linewidths=0,
        label="head",
        zorder=3,
        clip_on=False,
    )
    axes.set(
        ylabel="mean attention distance (px)",
        ylim=(0, 1.12 * max(side, distances.max())),
    )
    finish_block_axes(
        axes,
        layers,
        fontsize=SMALL,
        ncols=2,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderpad=0,
    )
    return figure
