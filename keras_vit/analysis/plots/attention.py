"""Pictures of where a model looks."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure

from keras_vit.analysis.inspection import Inspection
from keras_vit.analysis.plots.style import (
    LINE,
    MAGNITUDE,
    MOST_LETTERS,
    SMALL,
    add_axes,
    bar_length,
    block_axis,
    check_names,
    check_shape,
    draw_image,
    draw_overlay,
    draw_tiles,
    horizontal_percent_bar,
    mark_cells,
    new_figure,
    panel_size,
    percent_bar,
    plain_axes,
    plot_over_blocks,
    scale_over,
    set_title,
    shorten,
    size_of_tiles,
)
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


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column of overlays: the rollout, or the relevance for a rank.

    Shapes:
        grids: (B, h, w).

    Args:
        titles: The title of each image.
        grids: The values.
        norm: The scale of the values.
        label: Name of the values, for the colour bar.
    """

    titles: list[str]
    grids: np.ndarray
    norm: object
    label: str


def plot_readings(inspection: Inspection, smooth: bool = False) -> Figure:
    """Draw the rollout, and the relevance for the most likely classes.

    Each image has a row. All rollouts share one scale. All relevances share
    another one, after dividing each by its sum. If no patch supports a class,
    the title states this; if this holds for all classes, relevance has no
    colour bar.

    Args:
        inspection: The inspection of a model.
        smooth: See `plot_overlays`.
    """
    pixels = inspection.pixels
    relevances, unsupported = _read_relevances(inspection)
    columns = _make_columns(inspection, relevances, unsupported)
    across, down, pitch, margin = panel_size(pixels)
    room = 0.1 + (3 if unsupported.any() else 2) * LINE
    figure = new_figure(
        (1 + len(columns)) * pitch + 0.2, len(pixels) * (room + down) + 0.65
    )
    for i in range(len(pixels)):
        y = i * (room + down) + room
        axes = add_axes(figure, margin, y, across, down)
        draw_image(axes, pixels[i])
        set_title(axes, _describe_image(inspection.image_names[i]))
        drawn = []
        for j, column in enumerate(columns, 1):
            axes = add_axes(figure, j * pitch + margin, y, across, down)
            grid, norm = column.grids[i], column.norm
            drawn.append(
                draw_overlay(
                    axes, pixels[i], grid, norm, inspection.patch_size, smooth
                )
            )
            set_title(axes, column.titles[i])
    y += down + 0.08
    _add_bar(figure, drawn[0], columns[0].label, (pitch, y, pitch - 0.12))
    if relevances and not unsupported.all():
        # The bar is as long as its panels.
        place = 2 * pitch, y, len(relevances) * pitch - 0.12
        _add_bar(figure, drawn[1], columns[1].label, place)
    return figure


def _read_relevances(inspection):
    """Return the relevance for each rank, and where no patch supports it.

    Shapes:
        returns: a list of (B, h, w), each with the sum 1 or 0; and (B, k).
    """
    grids, unsupported = [], []
    matrices = inspection.relevances
    if matrices is None:
        return grids, np.zeros((len(inspection.pixels), 0), bool)
    # Relevance starts from the identity, which is subtracted here.
    changes = matrices - np.eye(matrices.shape[-1], dtype="float32")
    for j in range(matrices.shape[1]):
        is_supported = inspection.read_grid(changes[:, j]).any(axis=(1, 2))
        grid = inspection.read_grid(matrices[:, j])
        grid = np.where(is_supported[:, None, None], grid, 0)
        total = grid.sum(axis=(1, 2), keepdims=True)
        grids.append(grid / np.where(total > 0, total, 1))
        unsupported.append(~is_supported)
    return grids, np.stack(unsupported, axis=1)


def _make_columns(inspection, relevances, unsupported):
    """Return the columns: first the rollout, then the most likely classes."""
    rollouts = inspection.read_grid(inspection.rollouts)
    titles = ["rollout"] * len(rollouts)
    norm = scale_over(rollouts)
    columns = [_Column(titles, rollouts, norm, "share of attention")]
    norm = _scale_of_relevances(relevances, unsupported)
    for rank, grids in enumerate(relevances):
        titles = [
            _describe_class(inspection, image, rank)
            + ("\nno patch supports it" if unsupported[image, rank] else "")
            for image in range(len(grids))
        ]
        columns.append(_Column(titles, grids, norm, "share of relevance"))
    return columns


def _scale_of_relevances(relevances, unsupported):
    """Return the common scale, ignoring classes that no patch supports."""
    if not relevances:
        return None
    grids = np.stack(relevances, axis=1)  # (B, k, h, w)
    return scale_over(grids if unsupported.all() else grids[~unsupported])


def _describe_image(name):
    """Return the name of an image, on two lines if it is long."""
    place, colon, rest = name.partition(": ")
    if len(name) <= MOST_LETTERS or not colon:
        return shorten(name)
    return f"{place}:\n{shorten(rest)}"


def _describe_class(inspection, image, rank):
    """Return the name of the class of this rank, and its probability below."""
    index = inspection.top_classes[image, rank]
    share = inspection.probabilities[image, index]
    return f"{shorten(inspection.class_name(index))}\n{share:.1%}"


def _add_bar(figure, drawn, label, place):
    horizontal_percent_bar(drawn, label, add_axes(figure, *place, 0.1))


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
