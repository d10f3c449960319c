"""Colour bars, which explain the colours of a picture."""

from matplotlib.cm import ScalarMappable
from matplotlib.ticker import MaxNLocator, PercentFormatter

from keras_vit.analysis.plots.fonts import families_for
from keras_vit.analysis.plots.style import DPI, LETTER, SMALL


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
