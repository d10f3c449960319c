"""Many small grids side by side, drawn as one image."""

import numpy as np

from keras_vit.analysis.plots.style import SMALL


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
