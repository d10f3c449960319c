"""Pictures of what a model looks at and has learned. Needs matplotlib.

Each function returns a `matplotlib.figure.Figure` that belongs to nobody
else: no window, no global state. `save_figure` writes it. What is given stays
as it is.
"""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from keras_vit.analysis.embeddings import PrincipalFilters, scale_filters
from keras_vit.analysis.inspection import Inspection
from keras_vit.analysis.representations import artefact_tokens
from keras_vit.analysis.rollout import to_grid
from keras_vit.files import atomic_write
from keras_vit.tables import pick

try:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import Normalize, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator, PercentFormatter
except ImportError as error:
    raise ImportError(
        "Pictures need matplotlib: pip install 'keras-vit[plots]'"
    ) from error

DPI = 120
SMALL = 8  # Points, of all that is no title.
# Pictures beside or below each other that an eye can still tell apart.
MOST_TILES = 14
MAGNITUDE, SIGNED = "viridis", "RdBu_r"
OVERLAY = "inferno"
MARK = "#ff2d95"  # In none of the colour maps.
LUMINANCE = (0.299, 0.587, 0.114)
# What is black in an image; a colour over it could not be told from others.
DARKEST = 60
ROLLOUT = "rollout"
LINE = 0.16  # Inches that a line of a title takes.
LETTER = 0.065  # Inches that a letter takes, rather more than less.


def save_figure(figure: Figure, path: str | os.PathLike):
    """Write a figure as a PNG or SVG file, by the end of `path`.

    A reader sees the old file or the new one. The same figure gives the same
    bytes.

    Args:
        figure: What the functions here return.
        path: Ends in .png or .svg.

    Raises:
        ValueError: If it ends in something else.
    """
    suffix = _check_suffix(path, FORMATS)
    metadata = {"Date": None} if suffix == ".svg" else None
    with (
        matplotlib.rc_context({"svg.hashsalt": "keras_vit"}),
        atomic_write(path) as draft,
    ):
        figure.savefig(draft, metadata=metadata)


def render(figure: Figure) -> np.ndarray:
    """Return a figure as pixels.

    Shapes:
        returns: (H, W, 3), uint8.

    Args:
        figure: What the functions here return.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


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
    """Draw a value for each patch over the images, all in one scale.

    The images are shown in grey, so that a colour is a value.

    Shapes:
        images: (B, H, W, 1 or 3), uint8, as from `to_pixels`.
        grids: (B, h, w), such as `head_grid` of a rollout.

    Args:
        images: What lies below.
        grids: What lies above: cell (r, c) over the pixels of its patch.
        titles: One for each image.
        patch_size: Pixels from one patch to the next. Default: the grid covers
            the image. Behind a stem that pads it may cover more.
        label: What the values are. They are shown in percent.
        smooth: Draw what lies between the centres of patches in between.
        opacity: Of the largest values, from 0 to 1; the smallest are painted
            with a fifth of it.
        columns: Most images in a row.

    Raises:
        ValueError: If the shapes do not fit each other.
    """
    images, grids = _check_overlay(images, grids)
    count = len(images)
    titles = _check_names(titles, "titles", count)
    columns = min(columns, count)
    rows = -(-count // columns)
    across, down, pitch, margin = _panel_size(images)
    lines = max((1 + title.count("\n") for title in titles if title), default=0)
    room = 0.1 + LINE * lines
    length = _bar_length(rows * (room + down) - room, label)
    height = max(rows * (room + down), room + length) + 0.1
    figure = _figure(columns * pitch + 0.95, height)
    norm = _range_of(grids)
    for i in range(count):
        row, column = divmod(i, columns)
        axes = _add_axes(
            figure,
            column * pitch + margin,
            row * (room + down) + room,
            across,
            down,
        )
        drawn = _overlay(
            axes, images[i], grids[i], norm, patch_size, smooth, opacity
        )
        _title(axes, titles[i])
    bar_axes = _add_axes(figure, columns * pitch + 0.1, room, 0.13, length)
    _percent_bar(drawn, label, cax=bar_axes)
    return figure


def plot_readings(inspection: Inspection, smooth: bool = False) -> Figure:
    """Draw what the head reads: rollout, and relevance for the top classes.

    A row for each image. One scale for all rollouts and one for all
    relevances, each of which is divided by its sum. Titles say where no patch
    speaks for a class; where none does for any, relevance has no bar.

    Args:
        inspection: What was seen.
        smooth: See `plot_overlays`.
    """
    pixels = inspection.pixels
    grids = [inspection.read_grid(inspection.rollouts)]  # (B, h, w) each.
    silent = np.zeros((len(pixels), 0), bool)  # (B, k)
    if inspection.relevances is not None:
        matrices = inspection.relevances
        # Before anything speaks for a class, a token stands for itself.
        spoken = matrices - np.eye(matrices.shape[-1], dtype="float32")
        for j in range(matrices.shape[1]):
            said = inspection.read_grid(spoken[:, j]).any(axis=(1, 2))
            silent = np.append(silent, ~said[:, None], axis=1)
            grid = inspection.read_grid(matrices[:, j])
            grid = np.where(said[:, None, None], grid, 0)
            total = grid.sum(axis=(1, 2), keepdims=True)
            grids.append(grid / np.where(total > 0, total, 1))
    classes = silent.shape[1]
    count, columns = len(pixels), 2 + classes
    across, down, pitch, margin = _panel_size(pixels)
    room = 0.1 + (3 if silent.any() else 2) * LINE
    figure = _figure(columns * pitch + 0.2, count * (room + down) + 0.65)
    norms = [_range_of(grids[0])]
    norms += [_range_of(np.stack(grids[1:]))] * classes if classes else []
    for i in range(count):
        y = i * (room + down) + room
        axes = _add_axes(figure, margin, y, across, down)
        _image(axes, pixels[i])
        _title(axes, _shorten(inspection.image_names[i]))
        for j, (grid, norm) in enumerate(zip(grids, norms)):
            axes = _add_axes(figure, (1 + j) * pitch + margin, y, across, down)
            drawn = _overlay(
                axes, pixels[i], grid[i], norm, inspection.patch_size, smooth
            )
            title = _describe_class(inspection, i, j - 1) if j else ROLLOUT
            if j and silent[i, j - 1]:
                title += "\nno patch speaks for it"
            _title(axes, title)
            if i == count - 1 and (j == 0 or j == 1 and not silent.all()):
                label = ("share of attention", "share of relevance")[j]
                # As long as the panels that it is for.
                length = (classes - 1) * pitch * j + pitch - 0.12
                place = (1 + j) * pitch, y + down + 0.08, length, 0.1
                _level_percent_bar(drawn, label, _add_axes(figure, *place))
    return figure


def plot_heads(
    inspection: Inspection,
    image: int = 0,
    query: tuple[int, int] | None = None,
    scale: str = "shared",
) -> Figure:
    """Draw where each head looks: blocks from above, heads from the left.

    Shapes:
        returns: blocks x heads pictures of (h, w).

    Args:
        inspection: What was seen.
        image: Which of its images, from 0.
        query: (row, column) of the patch that looks, which is marked, from 0;
            the title counts from 1, as the paper does. Default: what the head
            of the model reads, the class token or the mean of the patches.
        scale: A key of SCALES: "shared" for one scale, in which the colours
            rise with the square root; "each" for one of each picture, from 0
            to its largest number.

    Raises:
        ValueError: If there is no such image, patch or scale.
    """
    scale_of = pick(SCALES, scale, "scale")
    grids, reader = _read_heads(inspection, image, query)
    shown, norm, label = scale_of(grids)
    layers, heads, h, w = grids.shape
    down, across = _size_of_tiles(
        *grids.shape, longest=8, narrowest=0.4, widest=1.1
    )
    image_across, image_down, room, margin = _panel_size(inspection.pixels)
    top, left = 0.1 + 2 * LINE, room + 0.4
    length = _bar_length(down, label)
    figure = _figure(
        left + across + 1.0,
        top + max(down + 0.4, image_down + 0.1, length + 0.1),
    )
    picture = _add_axes(figure, margin, top, image_across, image_down)
    _image(picture, inspection.pixels[image])
    _title(picture, f"{_shorten(inspection.image_names[image])}\n{reader}")
    axes = _add_axes(figure, left, top, across, down)
    drawn, corners = _tiles(axes, shown, cmap=MAGNITUDE, norm=norm)
    axes.set_xlabel("head", fontsize=SMALL)
    axes.set_ylabel("block", fontsize=SMALL)
    if query is not None:
        row, column = query
        _mark(picture, np.array([[column, row]]), inspection.patch_size, 1.5)
        _mark(axes, corners + (column, row), 1, 0.6)
    _percent_bar(
        drawn,
        label,
        cax=_add_axes(figure, left + across + 0.12, top, 0.13, length),
        extend="max" if shown.max() > norm.vmax else "neither",
    )
    return figure


def plot_distances(
    distances: np.ndarray,
    grid_size: tuple[int, int],
    patch_size: int,
    num_prefix_tokens: int = 0,
) -> Figure:
    """Draw how far each head looks, by depth: figure 7, right, of the paper.

    A dot is a head. Lines show the mean of a block, the longer side of the
    image, and how far a head looks that gives all tokens the same.

    Shapes:
        distances: (layers, K), in pixels, as from `attention_distances`.

    Args:
        distances: Of each head.
        grid_size: (h, w), rows and columns of the grid of patches.
        patch_size: Pixels from one patch to the next.
        num_prefix_tokens: 1 with a class token: what it is given is at no
            distance, and a head that gives all tokens the same looks a little
            less far. 0 for distances that were made with `renormalize`.
    """
    distances = _check_shape(distances, "distances", 2)
    layers, heads = distances.shape
    places = patch_size * np.indices(grid_size).reshape(2, -1).T
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    alike = apart.sum(axis=1).mean() / (len(places) + num_prefix_tokens)
    given = "tokens" if num_prefix_tokens else "patches"
    side = patch_size * max(grid_size)
    blocks = np.arange(layers)
    figure = _figure(max(4, 2.8 + 0.2 * layers), 3.2, layout="compressed")
    axes = figure.subplots()
    axes.axhline(side, color="0.6", lw=1, ls="--")
    axes.axhline(alike, color="0.6", lw=1, ls=":")
    for value, text in (
        (side, f"side of the\nimage, {side} px"),
        (alike, f"all {given}\nalike, {alike:.3g} px"),
    ):
        axes.annotate(
            text,
            (1.02, value),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=SMALL - 1,
            color="0.4",
        )
    axes.plot(
        blocks, distances.mean(axis=1), color="tab:orange", lw=1.5, label="mean"
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
    axes.set(
        xlabel="block",
        ylabel="mean attention distance (px)",
        xlim=(-0.5, layers - 0.5),
        ylim=(0, 1.12 * max(side, distances.max())),
    )
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
    _plain(axes)
    axes.legend(
        frameon=False,
        fontsize=SMALL,
        ncols=2,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderpad=0,
    )
    return figure


def plot_position_similarity(
    similarity: np.ndarray, title: str | None = None
) -> Figure:
    """Draw how alike the positions of patches are: figure 7, centre.

    The picture in row y and column x is that of the patch there: how alike the
    position embedding of each patch is to its own. Of more than 14 rows or
    columns every second, third, ... is drawn, and the title says so.

    Shapes:
        similarity: (h, w, h, w), as from `position_similarity`.

    Args:
        similarity: Cosines.
        title: What stands above.
    """
    similarity = _check_similarities(similarity, 4)
    return _draw_similarity(similarity, title, _signs(similarity))[0]


def plot_position_learning(
    similarities: np.ndarray, steps: Sequence[int], num_frames: int = 5
) -> Figure:
    """Draw how the position table was learned: some frames of its film.

    Shapes:
        similarities: (frames, h, w, h, w).

    Args:
        similarities: See `plot_position_similarity`; one scale for all.
        steps: Updates made before each, rising.
        num_frames: How many are drawn, the first and the last among them.

    Raises:
        ValueError: If `steps` are not one for each frame, or do not rise.
    """
    similarities, steps = _check_film(similarities, steps)
    if num_frames < 1:
        raise ValueError(
            f"`num_frames` must be 1 or more. Received: num_frames={num_frames}"
        )
    count = min(num_frames, len(steps))
    chosen = np.linspace(len(steps) - 1, 0, count).round().astype(int)[::-1]
    look = _signs(similarities)
    h, w = similarities.shape[1:3]
    side = 1.9
    figure = _figure(
        count * side * w / max(h, w) + 0.9,
        side * h / max(h, w) + 0.4,
        layout="compressed",
    )
    # More than there is between the pictures of a panel.
    figure.get_layout_engine().set(wspace=0.1)
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes, index in zip(panels, chosen):
        drawn = _similarity_tiles(axes, similarities[index], *look)
        axes.set(xticks=[], yticks=[])
        _title(axes, f"update {steps[index]:,}")
    _bar(drawn, "cosine similarity", ax=panels)
    return figure


def film_position_similarity(
    similarities: np.ndarray,
    steps: Sequence[int],
    path: str | os.PathLike,
    frames_per_second: float = 4.0,
):
    """Write a film of how the position table was learned, as a GIF.

    The last frame stays two seconds longer. A reader sees the old file or the
    new one; the same film gives the same bytes.

    Shapes:
        similarities: (frames, h, w, h, w).

    Args:
        similarities: See `plot_position_similarity`; one scale for all.
        steps: Updates made before each, rising; the titles say them.
        path: Ends in .gif.
        frames_per_second: How fast it goes.

    Raises:
        ValueError: If `steps` are not one for each frame or do not rise, or
            `path` ends in something else.
    """
    from PIL import Image  # Matplotlib has brought it.

    similarities, steps = _check_film(similarities, steps)
    if not 0 < frames_per_second <= 50:
        raise ValueError(
            "`frames_per_second` must be above 0 and at most 50. "
            f"Received: frames_per_second={frames_per_second}"
        )
    _check_suffix(path, (".gif",))
    look = _signs(similarities)
    titles = [f"update {step:,}" for step in steps]
    figure, drawn = _draw_similarity(similarities[0], titles[0], look)
    pictures = []
    for frame, title in zip(similarities, titles):
        drawn.set_data(_mosaic(_thin(frame)))
        _title(drawn.axes, _join(title, _thinned(frame)))
        pictures.append(Image.fromarray(render(figure)))
        figure.set_layout_engine("none")  # It would cost half of the time.
    milliseconds = [round(1000 / frames_per_second)] * len(pictures)
    milliseconds[-1] += 2000
    with atomic_write(path) as draft:
        pictures[0].save(
            draft,
            save_all=True,
            append_images=pictures[1:],
            duration=milliseconds,
            loop=0,
        )


def plot_filters(filters: PrincipalFilters, columns: int = 7) -> Figure:
    """Draw the principal filters of the patches: figure 7, left.

    Each over its whole range of values, with its share of the variance.

    Args:
        filters: As from `embedding_filters`.
        columns: Most filters in a row.

    Raises:
        ValueError: If the filters do not read grey images or colours.
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
    figure = _figure(
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


def plot_representation_similarity(
    similarity: np.ndarray, model_names: tuple[str, str] = ("a", "b")
) -> Figure:
    """Draw how alike the tokens behind the blocks of two models are.

    Shapes:
        similarity: (blocks of a, blocks of b), from
            `representation_similarity`.

    Args:
        similarity: Linear CKA, at most 1; what is below 0 is drawn as 0.
        model_names: What the two models are called.
    """
    similarity = _check_shape(similarity, "similarity", 2)
    names = _check_names(model_names, "model_names", 2)
    rows, columns = similarity.shape
    side = float(np.clip(3 / max(rows, columns), 0.12, 0.4))
    figure = _figure(
        max(columns * side + 1.5, 2.5),
        max(rows * side + 0.6, 2),
        layout="compressed",
    )
    axes = figure.subplots()
    drawn = axes.imshow(
        similarity, cmap=MAGNITUDE, vmin=0, vmax=1, origin="lower"
    )
    for axis, name in ((axes.yaxis, names[0]), (axes.xaxis, names[1])):
        axis.set_label_text(
            f"block of {_shorten(name)}", fontsize=SMALL, parse_math=False
        )
        axis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=SMALL)
    _bar(drawn, "linear CKA", ax=axes)
    return figure


def plot_token_norms(
    inspection: Inspection,
    block: int = -1,
    ratio: float = 3.0,
    most_images: int = 4,
) -> Figure:
    """Draw how long the tokens are by depth, and where those too long lie.

    Left the patches of all images, with their median, and the class token;
    right the patches marked that `artefact_tokens` finds behind a block.

    Args:
        inspection: What was seen.
        block: Behind which block the patches are marked, negative from the
            last.
        ratio: See `artefact_tokens`.
        most_images: How many of the images are drawn.

    Raises:
        ValueError: If there is no such block.
    """
    norms = inspection.token_norms  # (layers, B, T)
    prefix, layers = inspection.num_prefix_tokens, len(norms)
    if not -layers <= block < layers:
        raise ValueError(
            f"`block` must be from {-layers} to {layers - 1}. "
            f"Received: block={block}"
        )
    block %= layers
    found = artefact_tokens(norms, prefix, ratio)  # (layers, B, N)
    patches = norms[..., prefix:].reshape(layers, -1)
    flags = found.reshape(layers, -1)
    count = min(len(inspection.pixels), most_images)
    across, down, pitch, margin = _panel_size(inspection.pixels)
    top = 0.1 + 2 * LINE
    start = 3.8  # Of the images, in inches.
    figure = _figure(start + count * pitch, top + max(down + 0.1, 2.4))
    left = _add_axes(figure, 0.55, top, 2.9, 1.9)
    blocks = np.arange(layers)
    low, middle, high = np.percentile(patches, (5, 50, 95), axis=1)
    left.fill_between(
        blocks,
        low,
        high,
        color="tab:blue",
        alpha=0.2,
        lw=0,
        label="90 % of the patches",
    )
    left.plot(blocks, middle, color="tab:blue", label="their median")
    if prefix:
        left.plot(
            blocks,
            norms[..., 0].mean(axis=1),
            color="tab:orange",
            label="class token",
        )
    if flags.any():
        where, which = np.nonzero(flags)
        left.scatter(
            where,
            patches[where, which],
            s=6,
            color=MARK,
            label=f"over {ratio:g} medians",
            zorder=3,
        )
    left.axvline(block, color="0.7", lw=1, ls=":", zorder=0)
    left.set(xlabel="block", ylabel="length of a token")
    left.set(xlim=(-0.5, layers - 0.5), ylim=(0, None))
    left.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
    _plain(left)
    left.legend(frameon=False, fontsize=SMALL - 1)
    columns = inspection.grid_size[1]
    for i in range(count):
        axes = _add_axes(figure, start + i * pitch + margin, top, across, down)
        _image(axes, inspection.pixels[i])
        cells = np.flatnonzero(found[block, i])
        places = np.stack([cells % columns, cells // columns], axis=-1)
        _mark(axes, places, inspection.patch_size, 1.2)
        _title(
            axes,
            f"{_shorten(inspection.image_names[i])}\n{len(cells)} of "
            f"{found.shape[-1]} behind block {block}",
        )
    return figure


def _figure(width, height, layout=None):
    return Figure(figsize=(width, height), dpi=DPI, layout=layout)


def _read_heads(inspection, image, query):
    """Return what a token gives to patches, (layers, K, h, w); and its name."""
    h, w = inspection.grid_size
    count, prefix = len(inspection.pixels), inspection.num_prefix_tokens
    if not 0 <= image < count:
        raise ValueError(
            f"`image` must be from 0 to {count - 1}. Received: image={image}"
        )
    maps = inspection.maps[:, image].astype("float32")  # (layers, K, T, T)
    layers, heads, length, _ = maps.shape
    if query is None:
        pools = inspection.reads_patches
        grids = to_grid(
            maps.reshape(-1, length, length), (h, w), prefix, from_patches=pools
        )
        reader = "mean of the patches" if pools else "class token"
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


def _check_suffix(path, suffixes):
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in suffixes:
        raise ValueError(
            f"`path` must end in {' or '.join(suffixes)}. "
            f"Received: path={str(path)!r}"
        )
    return suffix


def _check_shape(values, argument, rank):
    values = np.asarray(values, "float32")
    if values.ndim != rank or not values.size:
        raise ValueError(
            f"`{argument}` must have {rank} dimensions, none of them empty. "
            f"Received: shape={values.shape}"
        )
    return values


def _check_overlay(images, grids):
    images, grids = np.asarray(images), _check_shape(grids, "grids", 3)
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


def _check_names(names, argument, count):
    names = [""] * count if names is None else [str(name) for name in names]
    if len(names) != count:
        raise ValueError(
            f"`{argument}` must be {count} texts. Received: {len(names)}"
        )
    return names


def _check_similarities(similarities, rank):
    argument = "similarity" if rank == 4 else "similarities"
    similarities = _check_shape(similarities, argument, rank)
    if similarities.shape[-4:-2] != similarities.shape[-2:]:
        raise ValueError(
            f"`{argument}` must end in the shape (h, w, h, w). "
            f"Received: shape={similarities.shape}"
        )
    return similarities


def _check_film(similarities, steps):
    similarities = _check_similarities(similarities, 5)
    steps = [int(step) for step in steps]
    if len(steps) != len(similarities) or steps != sorted(set(steps)):
        raise ValueError(
            "`steps` must be one for each frame, and rise. Received: "
            f"{len(similarities)} frames, steps={steps}"
        )
    return similarities, steps


def _panel_size(images):
    """Return width and height of an image; from one to the next; the margin.

    In inches. There is room for a title, however narrow the image.
    """
    scale = 1.8 / max(images.shape[1:3])
    down, across = (scale * size for size in images.shape[1:3])
    pitch = max(across, 1.5) + 0.12
    return across, down, pitch, (pitch - 0.12 - across) / 2


def _add_axes(figure, x, y, width, height):
    """Add axes of this size, all in inches from above and from the left.

    For images: layout engines do not know their aspect, nor how long a title
    is.
    """
    margin = 0.06
    full_width, full_height = figure.get_size_inches()
    return figure.add_axes(
        (
            (x + margin) / full_width,
            1 - (y + height) / full_height,
            width / full_width,
            height / full_height,
        )
    )


def _describe_class(inspection, image, rank):
    """Return the class of this rank, and its probability below."""
    index = inspection.top_classes[image, rank]
    share = inspection.probabilities[image, index]
    return f"{_shorten(inspection.class_name(index))}\n{share:.1%}"


def _image(axes, image):
    axes.imshow(
        np.broadcast_to(image, (*image.shape[:2], 3)), interpolation="nearest"
    )
    axes.set_axis_off()


def _overlay(axes, image, grid, norm, patch_size, smooth, opacity=0.85):
    """Draw an image in grey and a grid over it; return the drawn grid."""
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
        # The first pixel reaches from -0.5 to 0.5.
        extent=(-0.5, right - 0.5, down - 0.5, -0.5),
        interpolation="bilinear" if smooth else "nearest",
    )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    axes.set_axis_off()
    return drawn


def _range_of(values):
    low, high = float(values.min()), float(values.max())
    if low == high:  # From nothing to what there is.
        low, high = min(low, 0), max(high, 0)
    return Normalize(low, high if high > low else 1)


def _shared_scale(grids):
    # A few patches of a few heads would leave no colours for the others.
    largest = max(np.percentile(grids, 99.5), 1e-6)
    return grids, PowerNorm(0.5, 0, largest), "share of attention"


def _scale_each(grids):
    largest = grids.max(axis=(2, 3), keepdims=True)
    shares = grids / np.maximum(largest, 1e-6)
    return shares, Normalize(0, 1), "share of the largest"


def _gap_of(h, w):
    """Return the cells of a gap between tiles, and parts a cell is made of.

    Without parts, small grids would have gaps as broad as their cells.
    """
    parts = -(-16 // max(h, w))
    return max(1, round(parts * max(h, w) / 10)) / parts, parts


def _size_of_tiles(rows, columns, h, w, longest, narrowest, widest):
    """Return height and width of all tiles, in inches.

    No longer than `longest` unless the tiles would be smaller than
    `narrowest`, or the numbers beside them larger than they.
    """
    gap, _ = _gap_of(h, w)
    pitch = np.array([h + gap, w + gap]) / (max(h, w) + gap)
    longer = max(rows * pitch[0], columns * pitch[1])
    pitch *= np.clip(longest / longer, narrowest, widest)
    pitch *= max(1, 0.16 / pitch.min())
    return pitch * (rows, columns)


def _mosaic(tiles):
    """Put tiles (R, C, h, w) side by side, with a gap of nothing between."""
    rows, columns, h, w = tiles.shape
    gap, parts = _gap_of(h, w)
    gap = round(gap * parts)
    tiles = tiles.repeat(parts, axis=2).repeat(parts, axis=3)
    room = [(0, 0), (0, 0), (0, gap), (0, gap)]
    tiles = np.pad(tiles, room, constant_values=np.nan)
    down, right = tiles.shape[2:]
    mosaic = tiles.transpose(0, 2, 1, 3).reshape(rows * down, columns * right)
    return np.ma.masked_invalid(mosaic[:-gap, :-gap])


def _tiles(axes, tiles, row_names=None, column_names=None, **style):
    """Draw tiles (R, C, h, w), a unit for each cell.

    Returns:
        What was drawn; and (x, y) of the first cell of each tile.
    """
    rows, columns, h, w = tiles.shape
    gap, _ = _gap_of(h, w)
    down, right = h + gap, w + gap
    drawn = axes.imshow(
        _mosaic(tiles),
        interpolation="nearest",
        extent=(
            -0.5,
            columns * right - gap - 0.5,
            rows * down - gap - 0.5,
            -0.5,
        ),
        **style,
    )
    x, y = np.arange(columns) * right, np.arange(rows) * down
    axes.set_xticks(
        x + (w - 1) / 2,
        range(columns) if column_names is None else column_names,
    )
    axes.set_yticks(
        y + (h - 1) / 2,
        range(rows) if row_names is None else row_names,
    )
    axes.tick_params(length=0, labelsize=SMALL - 1, pad=2)
    axes.spines[:].set_visible(False)
    return drawn, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _shown(size):
    """Return which of `size` rows or columns are drawn, evenly spaced."""
    step = -(-size // MOST_TILES)
    return np.arange((size - 1) % step // 2, size, step)


def _thin(similarity):
    rows, columns = map(_shown, similarity.shape[:2])
    return similarity[rows][:, columns]


def _thinned(similarity):
    """Return what a title says if not all rows and columns are drawn."""
    steps = [-(-size // MOST_TILES) for size in similarity.shape[:2]]
    parts = [
        f"one {name} in {step}"
        for name, step in zip(("row", "column"), steps)
        if step > 1
    ]
    return " and ".join(parts)


def _similarity_size(similarity):
    """Return width and height of a figure, in inches."""
    shape = _thin(similarity).shape
    down, across = _size_of_tiles(
        *shape, longest=4.6, narrowest=0.25, widest=0.6
    )
    return across + 1.5, max(down + 0.7, 1.8)


def _draw_similarity(similarity, title, look):
    """Return a figure, and what is drawn in it."""
    figure = _figure(*_similarity_size(similarity), layout="compressed")
    axes = figure.subplots()
    drawn = _similarity_tiles(axes, similarity, *look)
    axes.set_xlabel("column of the patch", fontsize=SMALL)
    axes.set_ylabel("row of the patch", fontsize=SMALL)
    _title(axes, _join(title, _thinned(similarity)))
    _bar(drawn, "cosine similarity", ax=axes)
    return figure, drawn


def _similarity_tiles(axes, similarity, cmap, low):
    drawn, _ = _tiles(
        axes,
        _thin(similarity),
        # Counted from 1, as in the paper.
        *(_shown(size) + 1 for size in similarity.shape[:2]),
        cmap=cmap,
        vmin=low,
        vmax=1,
    )
    return drawn


def _signs(similarities):
    """Return the colour map and the lower end that fit cosines."""
    return (SIGNED, -1) if similarities.min() < 0 else (MAGNITUDE, 0)


def _mark(axes, cells, size, linewidth):
    """Draw squares around cells (x, y), each of `size` pixels."""
    squares = [Rectangle(size * cell - 0.5, size, size) for cell in cells]
    axes.add_collection(
        PatchCollection(
            squares, facecolor="none", edgecolor=MARK, linewidth=linewidth
        )
    )


def _bar(drawn, label, **place):
    """Draw a colour bar beside the axes `ax`, or into `cax`."""
    if "ax" in place:
        place = {"aspect": 25, "pad": 0.02, **place}
    # Of the colours themselves, without what is seen through them.
    colors = ScalarMappable(drawn.norm, drawn.cmap)
    bar = drawn.figure.colorbar(colors, **place)
    bar.set_label(label, fontsize=SMALL, parse_math=False)
    bar.ax.tick_params(labelsize=SMALL - 1)
    bar.outline.set_visible(False)


def _bar_length(side, label):
    """Return the inches of a bar beside `side` inches; its label fits."""
    return max(min(side, 3), 1, LETTER * len(label))


def _percent_bar(drawn, label, ticks=None, **place):
    # As many digits as tell the ticks apart.
    form = PercentFormatter(1, decimals=None)
    ticks = MaxNLocator(5) if ticks is None else ticks
    _bar(drawn, label, format=form, ticks=ticks, **place)


def _level_percent_bar(drawn, label, cax):
    """Draw a bar that lies; its numbers do not reach beyond its ends."""
    low, high = drawn.get_clim()
    room = cax.get_window_extent()
    longest = PercentFormatter(1, decimals=None).format_pct(high, high - low)
    # One at an end moves by half of its width, towards the next.
    apart = 1.6 * LETTER * len(longest)
    most = max(int(room.width / DPI / apart), 1)
    ticks = MaxNLocator(most, min_n_ticks=1).tick_values(low, high)
    ticks = ticks[(low <= ticks) & (ticks <= high)]
    if len(ticks) < 2:  # No scale; the ends are one, if not of round numbers.
        ticks = [low, high]
    _percent_bar(drawn, label, ticks, cax=cax, orientation="horizontal")
    for text in cax.get_xticklabels():
        box = text.get_window_extent()
        if box.x0 < room.x0:
            text.set_horizontalalignment("left")
        elif box.x1 > room.x1:
            text.set_horizontalalignment("right")


def _title(axes, text):
    # Names come from outside: a dollar in them begins no formula.
    axes.set_title(text, fontsize=SMALL, pad=3, parse_math=False)


def _join(*texts):
    return "; ".join(text for text in texts if text)


def _shorten(text):
    return text if len(text) <= 22 else f"{text[:21]}\u2026"


def _plain(axes):
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.label.set_size(SMALL + 1)
    axes.yaxis.label.set_size(SMALL + 1)


FORMATS = (".png", ".svg")
SCALES = {"shared": _shared_scale, "each": _scale_each}
