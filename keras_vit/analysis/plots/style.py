"""What all pictures have in common: checks, sizes, fonts, panels, bars."""

import contextlib
import functools
import os
import pathlib
import warnings

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

DPI = 120
SMALL = 8  # Font size in points, of everything but headlines.
LINE = 0.16  # Height of a line of a title, in inches.
MOST_LETTERS = 22  # Of a name in a title.
LETTER = 0.065  # Width of a letter in inches, rounded up.
BAR = 0.95  # Width of a colour bar with its numbers and label, in inches.
# Colour maps.
MAGNITUDE, SIGNED, OVERLAY = "viridis", "RdBu_r", "inferno"
MARK = "#ff2d95"  # A colour that is in none of the colour maps.
LUMINANCE = (0.299, 0.587, 0.114)
# Black pixels become this grey: over black, a colour would be hard to see.
DARKEST = 60


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


# Matplotlib's font of last resort draws a box for each character.
NO_FONTS = ("Last Resort High-Efficiency",)


def families_for(text: str) -> list[str]:
    """Return the font families that contain the characters of a text.

    Matplotlib draws a character with the first family that contains it. A
    warning names the characters that no installed font contains; they are
    drawn as boxes.
    """
    families = list(matplotlib.rcParams["font.family"])
    default = fontManager.findfont(FontProperties(family=families))
    missing = set(text) - _characters_in(default) - {"\n"}
    return [*families, *_find_families(frozenset(missing))]


@functools.cache
def _find_families(missing):
    """Return installed families that have `missing`, the fewest found."""
    found = []
    fonts = [f for f in fontManager.ttflist if f.name not in NO_FONTS]
    while missing and fonts:
        best = max(fonts, key=lambda f: len(missing & _characters_in(f.fname)))
        if not missing & _characters_in(best.fname):
            break
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


def new_figure(width: float, height: float, layout: str | None = None):
    """Return an empty figure; its size is in inches."""
    return Figure(figsize=(width, height), dpi=DPI, layout=layout)


def add_axes(figure: Figure, x, y, width, height) -> Axes:
    """Add axes of a given size, in inches from the left and from the top.

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


def panel_size(images: np.ndarray) -> tuple[float, float]:
    """Return the distance between panels of images, and their height.

    In inches. A panel has room for a title, even above a narrow image.
    """
    across, down = _image_size(images[0])
    return max(across, 1.5) + 0.12, down


def _image_size(image):
    scale = 1.8 / max(image.shape[:2])
    return scale * image.shape[1], scale * image.shape[0]


def add_panel(
    figure: Figure,
    x: float,
    y: float,
    image: np.ndarray,
    title: str,
    grid: np.ndarray | None = None,
    norm: Normalize | None = None,
    patch_size: int | None = None,
):
    """Draw an image with a title, or a grid of values over it in grey.

    Args:
        figure: The figure.
        x: Left end of the panel, in inches.
        y: Upper end of the image, in inches from the top.
        image: (H, W, 1 or 3), uint8.
        title: The text above it.
        grid: (h, w), a value for each patch; None for the image itself.
        norm: The scale of the values.
        patch_size: See `plot_overlays`.

    Returns:
        The axes.
    """
    across, down = _image_size(image)
    margin = (max(across, 1.5) - across) / 2
    axes = add_axes(figure, x + margin, y, across, down)
    height, width, channels = image.shape
    if grid is None:
        shown = np.broadcast_to(image, (height, width, 3))
        axes.imshow(shown, interpolation="nearest")
    else:
        grey = image @ np.array(LUMINANCE if channels == 3 else (1.0,))
        grey = DARKEST + grey * (255 - DARKEST) / 255
        axes.imshow(grey, "gray", vmin=0, vmax=255, interpolation="nearest")
        down, right = height, width
        if patch_size is not None:
            down, right = (cells * patch_size for cells in grid.shape)
        axes.imshow(
            grid,
            cmap=OVERLAY,
            norm=norm,
            # Smaller values let more of the image through.
            alpha=0.17 + 0.68 * norm(grid),
            # The first pixel extends from -0.5 to 0.5.
            extent=(-0.5, right - 0.5, down - 0.5, -0.5),
            interpolation="nearest",
        )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    axes.set_axis_off()
    set_title(axes, title)
    return axes


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


def plot_over_blocks(axes: Axes, values: np.ndarray, **style):
    """Draw a line over the blocks of a model; a dot if there is only one.

    Shapes:
        values: (layers,), first block first.
    """
    blocks = np.arange(1, len(values) + 1)
    axes.plot(blocks, values, marker="o" if len(blocks) == 1 else None, **style)


def finish_block_axes(axes: Axes, layers: int, **legend):
    """Number the blocks from 1; draw a faint grid, a legend and no frame."""
    axes.set(xlabel="block", xlim=(0.5, layers + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.label.set_size(SMALL + 1)
    axes.yaxis.label.set_size(SMALL + 1)
    axes.legend(frameon=False, **legend)


def color_bar(drawn, label: str, **place):
    """Draw a colour bar beside the axes `ax`, or into the axes `cax`.

    It explains the colours of the image `drawn`; `place` may have further
    options of `Figure.colorbar`.
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


def percent_bar(drawn, label: str, x: float, y: float, length: float, **more):
    """Draw a colour bar with numbers in percent, at a place in inches."""
    cax = add_axes(drawn.figure, x, y, 0.13, length)
    # None gives as many decimals as the ticks need to differ.
    form = PercentFormatter(1, decimals=None)
    color_bar(drawn, label, cax=cax, format=form, ticks=MaxNLocator(5), **more)


def bar_length(side: float, label: str) -> float:
    """Return the length of a bar beside an image of `side` inches, in inches.

    The bar is at least as long as its label.
    """
    return max(min(side, 3), 1, LETTER * len(label))


def size_of_tiles(rows, columns, h, w, longest, narrowest, widest):
    """Return the height and the width of all tiles, in inches.

    They are at most `longest`, unless the tiles would become smaller than
    `narrowest` or than the numbers beside them.
    """
    gap = _gap_between(h, w)
    pitch = np.array([h + gap, w + gap]) / (max(h, w) + gap)
    longer = max(rows * pitch[0], columns * pitch[1])
    pitch *= np.clip(longest / longer, narrowest, widest)
    pitch *= max(1, 0.16 / pitch.min())
    return pitch * (rows, columns)


def _gap_between(h, w):
    """Return the gap between tiles of (h, w) cells, in cells."""
    return max(h, w) / 10


def draw_tiles(axes, tiles: np.ndarray, row_names, column_names, cmap, norm):
    """Draw tiles, one unit of the axes for each cell.

    Shapes:
        tiles: (R, C, h, w).

    Returns:
        The last drawn image, and (x, y) of the first cell of each tile.
    """
    rows, columns, h, w = tiles.shape
    gap = _gap_between(h, w)
    corners = []
    for row, column in np.ndindex(rows, columns):
        x, y = column * (w + gap), row * (h + gap)
        corners.append((x, y))
        drawn = axes.imshow(
            tiles[row, column],
            cmap=cmap,
            norm=norm,
            interpolation="nearest",
            extent=(x - 0.5, x + w - 0.5, y + h - 0.5, y - 0.5),
        )
    axes.set(xlim=(-0.5, x + w - 0.5), ylim=(y + h - 0.5, -0.5))
    axes.set_xticks(np.arange(columns) * (w + gap) + (w - 1) / 2, column_names)
    axes.set_yticks(np.arange(rows) * (h + gap) + (h - 1) / 2, row_names)
    axes.tick_params(length=0, labelsize=SMALL - 1, pad=2)
    axes.spines[:].set_visible(False)
    return drawn, np.array(corners)


def save_figure(figure: Figure, path: str | os.PathLike):
    """Write a figure as a PNG or SVG file.

    The file is written atomically, and equal figures give equal bytes.

    Args:
        figure: A figure, such as the functions of `plots` return.
        path: Path of the file; its ending names the format.

    Raises:
        ValueError: If matplotlib does not write this format.
    """
    is_svg = pathlib.Path(path).suffix.lower() == ".svg"
    with (
        matplotlib.rc_context({"svg.hashsalt": "keras_vit"}),
        _boxes_for_missing_glyphs(),
        atomic_write(path) as draft,
    ):
        figure.savefig(draft, metadata={"Date": None} if is_svg else None)


def render(figure: Figure) -> np.ndarray:
    """Return a figure as pixels (H, W, 3), uint8."""
    canvas = FigureCanvasAgg(figure)
    with _boxes_for_missing_glyphs():
        canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


@contextlib.contextmanager
def _boxes_for_missing_glyphs():
    """Silence matplotlib, which warns of each; `families_for` warns once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield
