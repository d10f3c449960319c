"""The common style of all pictures: sizes, colours, titles, axes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from keras_vit.analysis.plots.fonts import families_for

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
