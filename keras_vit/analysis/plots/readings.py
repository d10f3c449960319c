"""Rollout and relevance over the images, for the tokens that the head reads."""

import dataclasses

import numpy as np
from matplotlib.figure import Figure

from keras_vit.analysis.inspection import Inspection
from keras_vit.analysis.plots.colorbars import horizontal_percent_bar
from keras_vit.analysis.plots.images import (
    draw_image,
    draw_overlay,
    scale_over,
)
from keras_vit.analysis.plots.style import (
    LINE,
    MOST_LETTERS,
    add_axes,
    new_figure,
    panel_size,
    set_title,
    shorten,
)


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column of overlays: the rollout, or the relevance for a rank.

    Shapes:
        grids: (B, h, w).

    Args:
        titles: The title of each image.
        grids: The values.
        norm: The scale of the values.
        label: Name of the values, for the colour bar.
    """

    titles: list[str]
    grids: np.ndarray
    norm: object
    label: str


def plot_readings(inspection: Inspection, smooth: bool = False) -> Figure:
    """Draw the rollout, and the relevance for the most likely classes.

    Each image has a row. All rollouts share one scale. All relevances share
    another one, after dividing each by its sum. If no patch supports a class,
    the title states this; if this holds for all classes, relevance has no
    colour bar.

    Args:
        inspection: The inspection of a model.
        smooth: See `plot_overlays`.
    """
    pixels = inspection.pixels
    relevances, unsupported = _read_relevances(inspection)
    columns = _make_columns(inspection, relevances, unsupported)
    across, down, pitch, margin = panel_size(pixels)
    room = 0.1 + (3 if unsupported.any() else 2) * LINE
    figure = new_figure(
        (1 + len(columns)) * pitch + 0.2, len(pixels) * (room + down) + 0.65
    )
    for i in range(len(pixels)):
        y = i * (room + down) + room
        axes = add_axes(figure, margin, y, across, down)
        draw_image(axes, pixels[i])
        set_title(axes, _describe_image(inspection.image_names[i]))
        drawn = []
        for j, column in enumerate(columns, 1):
            axes = add_axes(figure, j * pitch + margin, y, across, down)
            grid, norm = column.grids[i], column.norm
            drawn.append(
                draw_overlay(
                    axes, pixels[i], grid, norm, inspection.patch_size, smooth
                )
            )
            set_title(axes, column.titles[i])
    y += down + 0.08
    _add_bar(figure, drawn[0], columns[0].label, (pitch, y, pitch - 0.12))
    if relevances and not unsupported.all():
        # The bar is as long as its panels.
        place = 2 * pitch, y, len(relevances) * pitch - 0.12
        _add_bar(figure, drawn[1], columns[1].label, place)
    return figure


def _read_relevances(inspection):
    """Return the relevance for each rank, and where no patch supports it.

    Shapes:
        returns: a list of (B, h, w), each with the sum 1 or 0; and (B, k).
    """
    grids, unsupported = [], []
    matrices = inspection.relevances
    if matrices is None:
        return grids, np.zeros((len(inspection.pixels), 0), bool)
    # Relevance starts from the identity, which is subtracted here.
    changes = matrices - np.eye(matrices.shape[-1], dtype="float32")
    for j in range(matrices.shape[1]):
        is_supported = inspection.read_grid(changes[:, j]).any(axis=(1, 2))
        grid = inspection.read_grid(matrices[:, j])
        grid = np.where(is_supported[:, None, None], grid, 0)
        total = grid.sum(axis=(1, 2), keepdims=True)
        grids.append(grid / np.where(total > 0, total, 1))
        unsupported.append(~is_supported)
    return grids, np.stack(unsupported, axis=1)


def _make_columns(inspection, relevances, unsupported):
    """Return the columns: first the rollout, then the most likely classes."""
    rollouts = inspection.read_grid(inspection.rollouts)
    titles = ["rollout"] * len(rollouts)
    norm = scale_over(rollouts)
    columns = [_Column(titles, rollouts, norm, "share of attention")]
    norm = _scale_of_relevances(relevances, unsupported)
    for rank, grids in enumerate(relevances):
        titles = [
            _describe_class(inspection, image, rank)
            + ("\nno patch supports it" if unsupported[image, rank] else "")
            for image in range(len(grids))
        ]
        columns.append(_Column(titles, grids, norm, "share of relevance"))
    return columns


def _scale_of_relevances(relevances, unsupported):
    """Return the common scale, ignoring classes that no patch supports."""
    if not relevances:
        return None
    grids = np.stack(relevances, axis=1)  # (B, k, h, w)
    return scale_over(grids if unsupported.all() else grids[~unsupported])


def _describe_image(name):
    """Return the name of an image, on two lines if it is long."""
    place, colon, rest = name.partition(": ")
    if len(name) <= MOST_LETTERS or not colon:
        return shorten(name)
    return f"{place}:\n{shorten(rest)}"


def _describe_class(inspection, image, rank):
    """Return the name of the class of this rank, and its probability below."""
    index = inspection.top_classes[image, rank]
    share = inspection.probabilities[image, index]
    return f"{shorten(inspection.class_name(index))}\n{share:.1%}"


def _add_bar(figure, drawn, label, place):
    horizontal_percent_bar(drawn, label, add_axes(figure, *place, 0.1))
