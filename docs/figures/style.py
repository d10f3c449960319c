"""What the figures of the background pages have in common."""

import pathlib

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
    """Draw figures and write them, the same bytes each time.

    Args:
        figures: Maps the name of a file to the function that draws it.
        folder: Where to write.
    """
    for name, draw in figures.items():
        is_svg = name.endswith(".svg")
        metadata = {"Date" if is_svg else "Software": None}
        with plt.rc_context(LOOK):
            figure = draw()
            figure.savefig(folder / name, metadata=metadata)
        plt.close(figure)


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
