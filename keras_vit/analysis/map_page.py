"""A page that shows pictures as points, similar ones near each other."""

import base64
import io
import os
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.analysis.page import assemble
from keras_vit.files import atomic_write

TILE_SIDE = 48  # Pixels of a picture.
COLUMNS = 24  # Pictures in a row of a sheet, and rows.
MOST_LABELS = 2**16


def write_map(
    path: str | os.PathLike,
    points: np.ndarray,
    names: Sequence[str],
    labels: Sequence[str | None],
    pictures: Mapping[int, bytes],
    *,
    title: str = "Map of pictures",
    summary: str = "",
):
    """Write a page of one file with pictures as points. Needs Pillow.

    The page needs neither a server nor the network. It zooms, shows the
    picture below the pointer, and lists the names of selected pictures.

    Shapes:
        points: (N, 2), numbers of any range; both axes keep their scale.

    Args:
        path: The file, such as "map.html". Missing folders are created.
        points: The places of the pictures.
        names: Their names.
        labels: Their labels, each with a colour; None for none.
        pictures: Image files by index, JPEG or PNG; others have no picture.
        title: The title of the page.
        summary: A sentence below it.

    Raises:
        ValueError: If the points are not N pairs of finite numbers, or there
            are not as many names and labels.
        OSError: If the file cannot be written.
    """
    points = np.asarray(points, "float64")
    is_pairs = points.shape == (len(names), 2) and len(names) > 0
    if not is_pairs or not np.isfinite(points).all():
        raise ValueError(
            "`points` must be two finite numbers for each of the names. "
            f"Received: shape={points.shape}, {len(names)} names"
        )
    known = sorted({label for label in labels if label is not None})
    unlabelled = len(known) if None in labels else -1
    numbers = {label: number for number, label in enumerate(known)}
    if unlabelled >= 0:
        numbers[None] = unlabelled
        known = [*known, ""]
    if len(labels) != len(names) or len(known) > MOST_LABELS:
        raise ValueError(
            f"`labels` must be one for each of {len(names)} names, and at "
            f"most {MOST_LABELS:,} different ones. Received: {len(labels)}, "
            f"{len(known):,} different ones"
        )
    sheets, tiles = draw_sheets(pictures, len(names))
    content = {
        "summary": summary,
        "places": _pack(_scale(points)),
        "classes": _pack([numbers[label] for label in labels]),
        "labels": known,
        "unlabelled": unlabelled,
        "names": list(names),
        "sheets": sheets,
        "tiles": tiles,
        "side": TILE_SIDE,
        "columns": COLUMNS,
    }
    page = assemble("map", ["map"], title=title, content=content)
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")


def draw_sheets(
    pictures: Mapping[int, bytes], count: int
) -> tuple[list[str], list[int]]:
    """Return pictures on sheets, and the place of each, -1 for none.

    A sheet is the data URL of a JPEG with COLUMNS rows of pictures.

    Args:
        pictures: Image files by index.
        count: Number of indices.
    """
    from PIL import Image, ImageOps

    tiles, sheets = [-1] * count, []
    shown = sorted(pictures)
    for start in range(0, len(shown), COLUMNS**2):
        part = shown[start : start + COLUMNS**2]
        height = -(-len(part) // COLUMNS) * TILE_SIDE
        sheet = Image.new("RGB", (COLUMNS * TILE_SIDE, height), "#808080")
        for place, index in enumerate(part):
            with Image.open(io.BytesIO(pictures[index])) as file:
                # Small ones are enlarged.
                image = ImageOps.contain(
                    file.convert("RGB"), (TILE_SIDE, TILE_SIDE)
                )
            row, column = divmod(place, COLUMNS)
            left = column * TILE_SIDE + (TILE_SIDE - image.width) // 2
            top = row * TILE_SIDE + (TILE_SIDE - image.height) // 2
            sheet.paste(image, (left, top))
            tiles[index] = start + place
        drawn = io.BytesIO()
        sheet.save(drawn, "JPEG", quality=75)
        data = base64.b64encode(drawn.getvalue()).decode("ascii")
        sheets.append(f"data:image/jpeg;base64,{data}")
    return sheets, tiles


def _scale(points):
    """Return points from 0 to 65535, in the middle; y points upwards."""
    low, high = points.min(0), points.max(0)
    span = max(*(high - low), np.finfo("float64").tiny)
    middle = (points - (low + high) / 2) / span * (1, -1)
    return np.rint((middle + 0.5) * 65535)


def _pack(numbers):
    data = np.asarray(numbers, "<u2").tobytes()
    return base64.b64encode(data).decode("ascii")
