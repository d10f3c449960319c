"""Properties of all figures: room, names, errors."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from keras_vit.analysis import (
    PrincipalFilters,
    plots,
)
from tests.analysis.plots.made import draw_everything, made


def test_nothing_is_cut_off():
    """Everything drawn is inside the figure, for any shape of the images."""
    name = "a very long name of a file of a photo.jpeg"
    shapes = (2, 2), (1, 6), (6, 1), (1, 16), (16, 1), (2, 32), (32, 2)
    for h, w in shapes:
        inspection = made(
            h, w, image_names=(name, name), class_names=(name,) * 3
        )
        images, grids = inspection.pixels, inspection.rollouts[:, 0, 1:]
        figures = draw_everything(inspection)
        figures["heads, each"] = plots.plot_heads(inspection, scale="each")
        figures["overlay"] = plots.plot_overlays(
            images,
            grids.reshape(2, h, w),
            ["name\n70 %"] * 2,
            label="a label that is much longer than the images are high",
        )
        for kind, figure in figures.items():
            plots.render(figure)  # Lays it out.
            box = figure.get_tightbbox()
            width, height = figure.get_size_inches()
            assert box.x0 >= 0 and box.y0 >= 0, (kind, h, w, box)
            assert box.x1 <= width and box.y1 <= height, (kind, h, w, box)


def test_a_dollar_in_a_name_begins_no_formula():
    """The name is drawn as it is; half a formula would be an error."""
    name = "dollar$x_{1$y^.jpg"
    inspection = made(image_names=(name, name), class_names=(name,) * 3)
    figures = draw_everything(inspection)
    figures["overlay"] = plots.plot_overlays(
        inspection.pixels,
        inspection.rollouts[:, :1, 1:],
        [name] * 2,
        label=name,
    )
    figures["similarity"] = plots.plot_position_similarity(
        inspection.similarity, name
    )
    figures["representations"] = plots.plot_representation_similarity(
        np.ones((2, 2)), (name, name)
    )
    drawn = dict.fromkeys(figures, 0)
    for kind, figure in figures.items():
        plots.render(figure)
        for text in figure.findobj(Text):
            drawn[kind] += name in text.get_text()
    assert drawn == {
        "readings": 6,
        "heads": 1,
        "distances": 0,
        "similarity": 1,
        "norms": 2,
        "overlay": 3,
        "representations": 2,
    }


IMAGES, GRIDS = np.zeros((2, 8, 8, 3), "uint8"), np.zeros((2, 2, 2))


@pytest.mark.parametrize(
    "draw, message",
    [
        (lambda: plots.plot_overlays(IMAGES / 2, GRIDS), "uint8.*float64"),
        (lambda: plots.plot_overlays(IMAGES[..., :2], GRIDS), "1 or 3"),
        (lambda: plots.plot_overlays(IMAGES, GRIDS[:1]), "2 images, 1 grids"),
        (lambda: plots.plot_overlays(IMAGES, GRIDS[0]), "3 dimensions"),
        (lambda: plots.plot_overlays(IMAGES, GRIDS, ["a"]), "2 texts.*1"),
        (lambda: plots.plot_heads(made(), 2), "`image` must be from 0 to 1"),
        (lambda: plots.plot_heads(made(), -1), "Received: image=-1"),
        (lambda: plots.plot_heads(made(), 0, (2, 0)), r"2 x 3.*\(2, 0\)"),
        (lambda: plots.plot_heads(made(), scale="log"), "'shared', 'each'"),
        (lambda: plots.plot_distances(np.ones(3), (1, 3), 8), "2 dimensions"),
        (
            lambda: plots.plot_position_similarity(np.ones((2, 2, 2, 3))),
            r"\(h, w, h, w\)",
        ),
        (
            lambda: plots.plot_filters(
                PrincipalFilters(np.ones((3, 2, 2, 4)), np.ones(3))
            ),
            r"1 or 3 channels.*\(3, 2, 2, 4\)",
        ),
        (
            lambda: plots.plot_representation_similarity(
                np.ones((2, 2)), ("a",)
            ),
            "`model_names` must be 2 texts",
        ),
        (lambda: plots.plot_token_norms(made(), block=3), "from -3 to 2"),
        (
            lambda: plots.save_figure(Figure(), "picture.jpg"),
            ".png or .svg. Received: path='picture.jpg'",
        ),
    ],
)
def test_what_cannot_be_drawn_is_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
