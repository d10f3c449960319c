"""What all pictures have in common: checks, sizes, fonts, bars, tiles."""

import contextlib
import functools
import os
import pathlib
import warnings
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from keras_vit.files import atomic_write


def check_shape(values, argument: str, rank: int) -> np.ndarray:
    """Return values as a float32 array.

    Raises:
        ValueError: If they have another rank, or are empty.
    """
    values = np.asarray(values, "float32")
    if values.ndim != rank or not values.size:
        raise ValueError(
            f"`{argument}` must have {rank} dimensions, none of them empty. "
            f"Received: shape={values.shape}"
        )
    return values


def check_names(
    names: Sequence[str] | None, argument: str, count: int
) -> list[str]:
    """Return names as a list of strings; None gives empty names.

    Raises:
        ValueError: If the number of names is not `count`.
    """
    names = [""] * count if names is None else [str(name) for name in names]
    if len(names) != count:
        raise ValueError(
            f"`{argument}` must be {count} texts. Received: {len(names)}"
        )
    return names


# Matplotlib's font of last resort draws a box for each character.
NO_FONTS = ("Last Resort High-Efficiency",)


def families_for(text: str) -> list[str]:
    """Return the font families that contain the characters of a text.

    Matplotlib draws a character with the first family that contains it. A
    warning names the characters that no installed font contains; they are
    drawn as boxes.

    Args:
        text: A text, such as the name of a class.
    """
    families = list(matplotlib.rcParams["font.family"])
    missing = set(text) - _characters_of_default(tuple(families)) - {"\n"}
    return [*families, *_find_families(frozenset(missing))]


@functools.cache
def _characters_of_default(families):
    """Return the characters of matplotlib's default font."""
    path = fontManager.findfont(FontProperties(family=families))
    return frozenset(map(chr, get_font(path).get_charmap()))


@functools.cache
def _find_families(missing):
    """Return installed families that have `missing`, the fewest found."""
    found = []
    candidates = [f for f in fontManager.ttflist if f.name not in NO_FONTS]
    while missing and candidates:
        counts = [len(missing & _characters_in(f.fname)) for f in candidates]
        if not max(counts):
            break
        best = candidates[counts.index(max(counts))]
        missing -= _characters_in(best.fname)
        found.append(best.name)
    if missing:
        shown = "".join(sorted(missing)[:20])
        warnings.warn(
            f"No installed font has the characters {shown!r}: they are drawn "
            "as boxes. Fonts such as Noto Sans CJK have Chinese, Japanese and "
            "Korean characters.",
            stacklevel=2,
        )
    return tuple(found)


@functools.cache
def _characters_in(path):
    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # The font was removed or is damaged.
        return frozenset()


DPI = 120
SMALL = 8  # Font size in points, of everything but headlines.
LINE = 0.16  # Height of a line of a title, in inches.
MOST_LETTERS = 22  # Of a name in a title.
LETTER = 0.065  # Width of a letter in inches, rounded up.
MAGNITUDE, SIGNED = "viridis", "RdBu_r"  # Colour maps.
MARK = "#ff2d95"  # A colour that is in none of the colour maps.


def new_figure(width: float, height: float, layout: str | None = None):
    """Return an empty figure; its size is in inches."""
    return Figure(figsize=(width, height), dpi=DPI, layout=layout)


def add_axes(figure: Figure, x, y, width, height) -> Axes:
    """Add axes of a given size, in inches from the top and from the left.

    For images, because the layout engines of matplotlib consider neither their
    aspect ratio nor the length of a title.
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


def panel_size(images: np.ndarray) -> tuple[float, float, float, float]:
    """Return the size of the panel of an image, in inches.

    The panel has room for a title, even above a narrow image.

    Returns:
        The width and the height of the image, the distance from one panel to
        the next, and the margin left of the image.
    """
    scale = 1.8 / max(images.shape[1:3])
    down, across = (scale * size for size in images.shape[1:3])
    pitch = max(across, 1.5) + 0.12
    return across, down, pitch, (pitch - 0.12 - across) / 2


def set_title(axes: Axes, text: str):
    """Write a title above axes, in a font that contains its characters."""
    # Names come from outside: a dollar in them begins no formula.
    title = axes.set_title(text, fontsize=SMALL, pad=3, parse_math=False)
    title.set_fontfamily(families_for(text))


def shorten(text: str) -> str:
    """Return a name, truncated to MOST_LETTERS characters."""
    if len(text) <= MOST_LETTERS:
        return text
    return f"{text[: MOST_LETTERS - 1]}\u2026"


def plain_axes(axes: Axes):
    """Give the axes of a plot a faint grid and no frame."""
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.label.set_size(SMALL + 1)
    axes.yaxis.label.set_size(SMALL + 1)


def plot_over_blocks(
    axes: Axes, blocks: np.ndarray, values: np.ndarray, **style
):
    """Draw a line over the blocks of a model; a dot if there is only one.

    Shapes:
        blocks, values: (layers,).

    Args:
        axes: Axes to draw on.
        blocks: Numbers of the blocks.
        values: A value for each.
        **style: See `Axes.plot`.
    """
    marker = "o" if len(blocks) == 1 else None
    axes.plot(blocks, values, marker=marker, **style)


def block_axis(axes: Axes, blocks: np.ndarray):
    """Label the x axis with the blocks, numbered from 1."""
    axes.set(xlabel="block", xlim=(blocks[0] - 0.5, blocks[-1] + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))


def color_bar(drawn, label: str, **place):
    """Draw a colour bar beside the axes `ax`, or into the axes `cax`.

    Args:
        drawn: The image whose colours the bar explains.
        label: Name of the values.
        **place: `ax` or `cax`, and further options of `Figure.colorbar`.
    """
    if "ax" in place:
        place = {"aspect": 25, "pad": 0.02, **place}
    # The opaque colours, whatever the transparency of the image.
    colors = ScalarMappable(drawn.norm, drawn.cmap)
    bar = drawn.figure.colorbar(colors, **place)
    bar.set_label(
        label, fontsize=SMALL, parse_math=False, family=families_for(label)
    )
    bar.ax.tick_params(labelsize=SMALL - 1)
    bar.outline.set_visible(False)


def percent_bar(drawn, label: str, ticks=None, **place):
    """Draw a colour bar with numbers in percent."""
    # None gives as many decimals as the ticks need to differ.
    form = PercentFormatter(1, decimals=None)
    ticks = MaxNLocator(5) if ticks is None else ticks
    color_bar(drawn, label, format=form, ticks=ticks, **place)


def horizontal_percent_bar(drawn, label: str, cax):
    """Draw a horizontal bar whose numbers do not extend beyond its ends."""
    low, high = drawn.get_clim()
    room = cax.get_window_extent()
    percent_bar(
        drawn,
        label,
        _choose_ticks(low, high, room.width / DPI),
        cax=cax,
        orientation="horizontal",
    )
    for text in cax.get_xticklabels():
        box = text.get_window_extent()
        if box.x0 < room.x0:
            text.set_horizontalalignment("left")
        elif box.x1 > room.x1:
            text.set_horizontalalignment("right")


def _choose_ticks(low, high, inches):
    """Return round numbers that fit on a bar, or its two ends."""
    longest = PercentFormatter(1, decimals=None).format_pct(high, high - low)
    # A number at an end moves by half of its width, towards the next one.
    most = max(int(inches / (1.6 * LETTER * len(longest))), 1)
    ticks = MaxNLocator(most, min_n_ticks=1).tick_values(low, high)
    ticks = ticks[(low <= ticks) & (ticks <= high)]
    # A single tick does not show a scale.
    return ticks if len(ticks) > 1 else [low, high]


def bar_length(side: float, label: str) -> float:
    """Return the length of a bar beside an image of `side` inches, in inches.

    The bar is at least as long as its label.
    """
    return max(min(side, 3), 1, LETTER * len(label))


OVERLAY = "inferno"  # A colour map.
LUMINANCE = (0.299, 0.587, 0.114)
# Black pixels become this grey: over black, a colour would be hard to see.
DARKEST = 60


def draw_image(axes, image: np.ndarray):
    """Draw a grey or colour image (H, W, 1 or 3)."""
    axes.imshow(
        np.broadcast_to(image, (*image.shape[:2], 3)), interpolation="nearest"
    )
    axes.set_axis_off()


def draw_overlay(
    axes,
    image: np.ndarray,
    grid: np.ndarray,
    norm: Normalize,
    patch_size: int | None,
    smooth: bool,
    opacity: float = 0.85,
):
    """Draw a grid over a grey image; return the drawn grid.

    See `plot_overlays` for the arguments.
    """
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
        # The first pixel extends from -0.5 to 0.5.
        extent=(-0.5, right - 0.5, down - 0.5, -0.5),
        interpolation="bilinear" if smooth else "nearest",
    )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    axes.set_axis_off()
    return drawn


def scale_over(values: np.ndarray) -> Normalize:
    """Return the scale from the smallest to the largest value."""
    low, high = float(values.min()), float(values.max())
    if low == high:  # All are the same: a scale from 0 to this value.
        low, high = min(low, 0), max(high, 0)
    return Normalize(low, high if high > low else 1, clip=True)


def mark_cells(axes, cells, size: float, linewidth: float):
    """Draw squares around cells (x, y), each of `size` units."""
    squares = [Rectangle(size * cell - 0.5, size, size) for cell in cells]
    axes.add_collection(
        PatchCollection(
            squares, facecolor="none", edgecolor=MARK, linewidth=linewidth
        )
    )


def gap_between(h: int, w: int) -> tuple[float, int]:
    """Return the gap between tiles of (h, w) cells.

    Each cell is drawn as parts x parts pixels. Otherwise, the gaps between
    small grids would be as wide as their cells.

    Returns:
        The width of the gap in cells, and the number of parts of a cell.
    """
    parts = -(-16 // max(h, w))
    return max(1, round(parts * max(h, w) / 10)) / parts, parts


def size_of_tiles(rows, columns, h, w, longest, narrowest, widest):
    """Return the height and the width of all tiles, in inches.

    They are at most `longest`, unless the tiles would become smaller than
    `narrowest` or than the numbers beside them.
    """
    gap, _ = gap_between(h, w)
    pitch = np.array([h + gap, w + gap]) / (max(h, w) + gap)
    longer = max(rows * pitch[0], columns * pitch[1])
    pitch *= np.clip(longest / longer, narrowest, widest)
    pitch *= max(1, 0.16 / pitch.min())
    return pitch * (rows, columns)


def make_mosaic(tiles: np.ndarray) -> np.ma.MaskedArray:
    """Put tiles side by side, with masked gaps between them.

    Shapes:
        tiles: (R, C, h, w).
    """
    rows, columns, h, w = tiles.shape
    gap, parts = gap_between(h, w)
    gap = round(gap * parts)
    tiles = tiles.repeat(parts, axis=2).repeat(parts, axis=3)
    room = [(0, 0), (0, 0), (0, gap), (0, gap)]
    tiles = np.pad(tiles, room, constant_values=np.nan)
    down, right = tiles.shape[2:]
    mosaic = tiles.transpose(0, 2, 1, 3).reshape(rows * down, columns * right)
    return np.ma.masked_invalid(mosaic[:-gap, :-gap])


def draw_tiles(axes, tiles: np.ndarray, row_names, column_names, **style):
    """Draw tiles, one unit of the axes for each cell.

    Shapes:
        tiles: (R, C, h, w).

    Args:
        axes: The axes to draw in.
        tiles: The values.
        row_names: Names of the R rows.
        column_names: Names of the C columns.
        **style: Options of `imshow`.

    Returns:
        The drawn image, and (x, y) of the first cell of each tile.
    """
    rows, columns, h, w = tiles.shape
    gap, _ = gap_between(h, w)
    down, right = h + gap, w + gap
    drawn = axes.imshow(
        make_mosaic(tiles),
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
    axes.set_xticks(x + (w - 1) / 2, column_names)
    axes.set_yticks(y + (h - 1) / 2, row_names)
    axes.tick_params(length=0, labelsize=SMALL - 1, pad=2)
    axes.spines[:].set_visible(False)
    return drawn, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def save_figure(figure: Figure, path: str | os.PathLike):
    """Write a figure as a PNG or SVG file.

    The file is written atomically, and equal figures give equal bytes.

    Args:
        figure: A figure, such as the functions of `plots` return.
        path: Path of the file; must end in .png or .svg.

    Raises:
        ValueError: If the path has another ending.
    """
    suffix = check_suffix(path, PICTURE_SUFFIXES)
    metadata = {"Date": None} if suffix == ".svg" else None
    with (
        matplotlib.rc_context({"svg.hashsalt": "keras_vit"}),
        _boxes_for_missing_glyphs(),
        atomic_write(path) as draft,
    ):
        figure.savefig(draft, metadata=metadata)


def render(figure: Figure) -> np.ndarray:
    """Return a figure as pixels.

    Shapes:
        returns: (H, W, 3), uint8.

    Args:
        figure: A figure, such as the functions of `plots` return.
    """
    canvas = FigureCanvasAgg(figure)
    with _boxes_for_missing_glyphs():
        canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def check_suffix(path: str | os.PathLike, suffixes: Sequence[str]) -> str:
    """Return the suffix of a path.

    Raises:
        ValueError: If it is not one of `suffixes`.
    """
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in suffixes:
        raise ValueError(
            f"`path` must end in {' or '.join(suffixes)}. "
            f"Received: path={str(path)!r}"
        )
    return suffix


@contextlib.contextmanager
def _boxes_for_missing_glyphs():
    """Silence matplotlib, which warns of each; `families_for` warns once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield


PICTURE_SUFFIXES = (".png", ".svg")
