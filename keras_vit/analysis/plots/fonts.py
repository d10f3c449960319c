"""Fonts for names in any script, such as Chinese, Japanese and Korean."""

import functools
import warnings

import matplotlib
from matplotlib.font_manager import FontProperties, fontManager, get_font

# Matplotlib's font of last resort draws a box for each character.
NO_FONTS = ("Last Resort High-Efficiency",)


def families_for(text: str) -> list[str]:
    """Return the font families that have the characters of a text.

    Matplotlib takes a character from the first family that has it. A warning
    says which characters no installed font has: they are drawn as boxes.

    Args:
        text: Such as the name of a class.
    """
    families = list(matplotlib.rcParams["font.family"])
    missing = set(text) - _characters_of_default(tuple(families)) - {"\n"}
    return [*families, *_find_families(frozenset(missing))]


@functools.cache
def _characters_of_default(families):
    """Return the characters of the font that matplotlib would take."""
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
    except (OSError, RuntimeError):  # A font that is gone or damaged.
        return frozenset()
