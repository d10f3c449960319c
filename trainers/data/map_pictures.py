"""Pictures of maps, an answer for each pixel, in colours and over images."""

import html
from collections.abc import Iterable, Sequence

import numpy as np

from keras_vit.analysis.colours import CLASS_COLOURS, NUMBER_COLOURS
from keras_vit.preprocessing.description import as_colours

OPACITY = 0.55  # Of a map over an image.
UNKNOWN_LEVEL = 0.5  # Grey.


def paint_map(
    found: np.ndarray, limits: tuple[float, float] | None = None
) -> np.ndarray:
    """Return the colours of a map; grey where nothing is known.

    Shapes:
        found: (H, W), classes or depths, NaN where unknown.
        returns: (H, W, 3), 0 to 1.

    Args:
        found: The map.
        limits: The nearest and the farthest depth, of which the nearest is
            the brightest; None for classes.
    """
    is_known = np.isfinite(found)
    known = np.where(is_known, found, 0)
    if limits is None:
        table = _parse(CLASS_COLOURS)
        colours = table[known.astype(int) % len(table)]
    else:
        table, (near, far) = _parse(NUMBER_COLOURS), limits
        share = (far - known) / max(far - near, 1e-6)
        place = np.clip(share, 0, 1) * (len(table) - 1)
        colours = np.stack(
            [
                np.interp(place, range(len(table)), table[:, i])
                for i in range(3)
            ],
            -1,
        )
    return np.where(is_known[..., None], colours, UNKNOWN_LEVEL)


def paint_over(
    image: np.ndarray,
    found: np.ndarray,
    limits: tuple[float, float] | None = None,
    opacity: float = OPACITY,
) -> np.ndarray:
    """Return an image with a map over it.

    Shapes:
        image: (H, W, C), 0 to 1, with 1 or 3 channels or more. found: (H, W).
        returns: (H, W, 3), 0 to 1.

    Args:
        image: The image.
        found: See `paint_map`.
        limits: See there. Depths cover the image.
        opacity: How much of the image classes cover, 0 to 1.
    """
    image = np.clip(as_colours(image), 0, 1)
    image = np.broadcast_to(image, (*image.shape[:2], 3))
    opacity = opacity if limits is None else 1.0
    return image + opacity * (paint_map(found, limits) - image)


def make_legend(names: Sequence[str], labels: Iterable[int]) -> str:
    """Return the colours and the names of some classes, as HTML.

    A page with it needs LEGEND_STYLE.
    """
    return "".join(
        '<span class="class"><i style="background:'
        f'{CLASS_COLOURS[label % len(CLASS_COLOURS)]}"></i>'
        f"{html.escape(names[label])}</span>"
        for label in labels
    )


LEGEND_STYLE = """
.class { display: inline-block; margin-right: .7rem; }
.class i { display: inline-block; width: .8em; height: .8em;
 margin-right: .25em; }
"""


def limits_of(maps: np.ndarray) -> tuple[float, float]:
    """Return the nearest and the farthest known depth of some maps."""
    known = maps[np.isfinite(maps)]
    return (float(known.min()), float(known.max())) if len(known) else (0, 1)


def _parse(colours):
    """Return "#rrggbb" as an array (N, 3), 0 to 1."""
    return np.array([[*bytes.fromhex(each[1:])] for each in colours]) / 255
