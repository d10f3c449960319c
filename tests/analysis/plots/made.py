"""Inspections of known numbers, and values read off a figure."""

import numpy as np
from PIL import Image

from keras_vit.analysis import (
    Inspection,
    plots,
)
from tests.tiny import tiny_config


def made(h=2, w=3, patch_size=4, layers=3, heads=2, batch=2, **changes):
    """Return an Inspection of known random numbers, which cannot be written.

    `changes` replace its fields.
    """
    draws = np.random.default_rng(h * w)
    prefix = changes.get("num_prefix_tokens", 1)
    length = h * w + prefix
    if "maps" not in changes:
        maps = draws.random((layers, batch, heads, length, length))
        maps /= maps.sum(axis=-1, keepdims=True)
        changes["maps"] = maps.astype("float16")
    size = (h * patch_size, w * patch_size)
    inspection = Inspection(
        **{
            "model_name": "made",
            "config": tiny_config(image_size=size, patch_size=patch_size),
            "image_names": tuple(f"{i}.png" for i in range(batch)),
            "pixels": draws.integers(0, 256, (batch, *size, 3), "uint8"),
            "grid_size": (h, w),
            "num_prefix_tokens": prefix,
            "reads_patches": False,
            "rollouts": draws.random((batch, length, length)),
            "token_norms": draws.uniform(9, 11, (layers, batch, length)),
            "distances": draws.uniform(1, 9, (layers, heads)),
            "similarity": draws.uniform(0.1, 1, (h, w, h, w)),
            "filters": None,
            "class_names": ("cat", "dog", "fish"),
            "probabilities": np.tile([0.2, 0.7, 0.1], (batch, 1)),
            "top_classes": np.tile([1, 0], (batch, 1)),
            "relevances": draws.random((batch, 2, length, length)),
            **changes,
        }
    )
    for value in vars(inspection).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return inspection


def value_at(drawn, x, y):
    """Return the value of an image of matplotlib at (x, y) of its axes."""
    left, right, bottom, top = drawn.get_extent()
    values = drawn.get_array()
    rows, columns = values.shape[:2]
    column = int((x - left) / (right - left) * columns)
    row = int((y - top) / (bottom - top) * rows)
    return values[row, column]


def tile_of(axes, row, column, grid_size):
    """Return the cells of the tile over these numbers of the axes."""
    h, w = grid_size
    # The tick is at the middle of the tile; a cell is one unit.
    x, y = axes.get_xticks()[column], axes.get_yticks()[row]
    [drawn] = axes.images
    return np.array(
        [
            [
                value_at(drawn, x - (w - 1) / 2 + c, y - (h - 1) / 2 + r)
                for c in range(w)
            ]
            for r in range(h)
        ]
    )


def tick_texts(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


def bars_of(figure):
    """Return the axes of the colour bars."""
    return [a for a in figure.axes if hasattr(a, "_colorbar")]


def panels_of(figure):
    return [a for a in figure.axes if a not in bars_of(figure)]


def read_pixels(figure, path):
    plots.save_figure(figure, path)
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def pixel_at(pixels, axes, x, y):
    """Return the colour of a picture at (x, y) of the axes in it."""
    column, up = axes.transData.transform((x, y))
    return pixels[int(len(pixels) - up), int(column)]


def draw_everything(inspection):
    return {
        "readings": plots.plot_readings(inspection),
        "heads": plots.plot_heads(inspection, query=(0, 0)),
        "distances": plots.plot_distances(inspection.distances, (2, 3), 4),
        "similarity": plots.plot_position_similarity(inspection.similarity),
        "norms": plots.plot_token_norms(inspection),
    }
