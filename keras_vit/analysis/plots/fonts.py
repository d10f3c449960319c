"""Fonts for names in any script, such as Chinese, Japanese and Korean."""

import functools
import warnings

import matplotlib
from matplotlib.font_manager import FontProperties, fontManager, get_font

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
