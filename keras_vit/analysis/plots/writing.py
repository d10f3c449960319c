"""Figures as files and as pixels."""

import contextlib
import os
import pathlib
import warnings
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from keras_vit.files import atomic_write


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
