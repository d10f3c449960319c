"""The look of the figures of the background pages, and how they are written."""

import io
import pathlib
import re

import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt

FOLDER = pathlib.Path(__file__).parents[1] / "images/background"
# The colours of Okabe and Ito, told apart by colour-blind readers too.
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PINK, YELLOW, GREY = "#cc79a7", "#e69f00", "#777777"
WIDTH = 7.2  # Inches: 518 points, about a column of the site.

LOOK = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#dddddd",
    "image.cmap": "viridis",
    "image.interpolation": "nearest",
    "legend.frameon": False,
    "savefig.dpi": 130,
    "svg.hashsalt": "keras_vit",
}


def write(figures: dict, folder: pathlib.Path = FOLDER):
    """Draw figures and write those that have changed.

    Args:
        figures: Maps the name of a file to the function that draws it.
        folder: Where to write.
    """
    for name, draw in figures.items():
        file = io.BytesIO()
        suffix = pathlib.Path(name).suffix
        metadata = {"Date" if suffix == ".svg" else "Software": None}
        with plt.rc_context(LOOK):
            figure = draw()
            figure.savefig(file, format=suffix[1:], metadata=metadata)
        plt.close(figure)
        path, content = folder / name, file.getvalue()
        if not (path.exists() and is_same_svg(path.read_bytes(), content)):
            path.write_bytes(content)


def is_same_svg(old: bytes, new: bytes) -> bool:
    """Return whether two SVG files differ by rounding errors at most.

    These depend on the machine that draws. A figure that is the same to a
    hundredth of a point keeps its file.

    Args:
        old: The content of a file.
        new: The content of another file, of any format.
    """
    if not old.startswith(b"<?xml"):
        return old == new
    number = rb"-?\d+\.\d+(?:e-?\d+)?"
    if re.sub(number, b"", old) != re.sub(number, b"", new):
        return False
    old, new = (re.findall(number, svg) for svg in (old, new))
    return np.allclose(np.array(old, float), np.array(new, float), atol=0.01)


def photo(size: int = 224) -> np.ndarray:
    """Return a photo, (size, size, 3), floats from 0 to 255.

    `china.jpg` of scikit-learn, by danielbuechele, CC BY 2.0; the middle of
    it, scaled.

    Args:
        size: Rows and columns.
    """
    from PIL import Image
    from sklearn.datasets import load_sample_image

    image = Image.fromarray(load_sample_image("china.jpg"))
    side = min(image.size)
    left = (image.width - side) // 2
    box = (left, 0, left + side, side)
    scaled = image.resize((size, size), Image.Resampling.BOX, box=box)
    return np.asarray(scaled, "float32")


def count_from_one(axis, count: int, step: int = 1):
    """Number the cells of an axis from 1, as all pictures do.

    Args:
        axis: The x or y axis of a picture or of bars at 0, 1, 2, ...
        count: Number of cells.
        step: Distance of the labels.
    """
    numbers = sorted({1, *range(step, count + 1, step)})
    axis.set_ticks([number - 1 for number in numbers], numbers)


def hide_frame(axes):
    """Leave only the picture of some axes.

    Args:
        axes: One axes or many.
    """
    for one in np.ravel(axes):
        one.set_xticks([])
        one.set_yticks([])
        for spine in one.spines.values():
            spine.set_visible(False)


def box(axes, x, y, text, color, width=1.5, height=0.5):
    """Draw a box with a text around a point.

    Args:
        axes: Where to draw.
        x: Its column.
        y: Its row.
        text: The text.
        color: Colour of the box.
        width: Width of the box.
        height: Its height.
    """
    axes.add_patch(
        plt.Rectangle(
            (x - width / 2, y - height / 2),
            width,
            height,
            facecolor=color,
            edgecolor=GREY,
            alpha=0.25,
        )
    )
    axes.text(x, y, text, ha="center", va="center", size=8)


def arrow(axes, start, end):
    """Draw an arrow.

    Args:
        axes: Where to draw.
        start: Where it begins, (x, y).
        end: Where it points.
    """
    axes.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "->", "color": GREY},
    )
