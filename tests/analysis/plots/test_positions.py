"""Similarity of positions, each picture at the place of its patch."""

import numpy as np
import pytest

from keras_vit.analysis import plots
from tests.analysis.plots.made import panels_of, tick_texts, tile_of


@pytest.mark.parametrize("h, w", [(3, 3), (2, 5), (1, 1)])
def test_similarities_are_where_their_patch_is(h, w):
    similarity = np.random.default_rng(1).uniform(0, 1, (h, w, h, w))
    figure = plots.plot_position_similarity(similarity, "learned")
    axes = panels_of(figure)[0]
    assert axes.get_title() == "learned"
    for r in range(h):
        for c in range(w):
            got = tile_of(axes, r, c, (h, w))
            np.testing.assert_allclose(got, similarity[r, c], rtol=1e-6)


def test_cosines_below_zero_have_colours_of_two_sides():
    similarity = np.full((2, 2, 2, 2), 0.5)
    image = panels_of(plots.plot_position_similarity(similarity))[0].images[0]
    assert image.get_clim() == (0, 1)
    similarity[0, 0, 1, 1] = -0.1
    signed = panels_of(plots.plot_position_similarity(similarity))[0].images[0]
    assert signed.get_clim() == (-1, 1)
    assert signed.cmap(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.05)


@pytest.mark.parametrize(
    "h, w, rows, columns, title",
    [
        (14, 14, range(14), range(14), ""),
        (16, 3, range(0, 16, 2), range(3), "one row in 2"),
        (2, 32, range(2), range(0, 32, 3), "one column in 3"),
        (30, 30, range(1, 30, 3), range(1, 30, 3), "one row in 3 and one"),
    ],
)
def test_large_grids_are_thinned_out_and_say_so(h, w, rows, columns, title):
    number = np.arange(h * w).reshape(h, w) / (h * w)
    similarity = np.broadcast_to(number[:, :, None, None], (h, w, h, w))
    axes = panels_of(plots.plot_position_similarity(similarity))[0]
    assert axes.get_title().startswith(title)
    assert bool(axes.get_title()) == bool(title)
    assert tick_texts(axes.yaxis) == [str(r + 1) for r in rows]
    assert tick_texts(axes.xaxis) == [str(c + 1) for c in columns]
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            tile = tile_of(axes, i, j, (1, 1))
            np.testing.assert_allclose(tile, number[r, c], rtol=1e-6)
