"""Values over images: their places, colours and scale."""

import numpy as np
import pytest

from keras_vit.analysis import plots
from tests.analysis.plots.made import (
    bars_of,
    panels_of,
    pixel_at,
    read_pixels,
    tick_texts,
)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("grid_size", [(2, 2), (2, 4), (5, 2)])
def test_an_overlay_lies_over_its_patches(grid_size, channels, tmp_path):
    """In the file: first and last pixel of each patch have its colour."""
    h, w = grid_size
    size = 4
    images = np.full((2, h * size, w * size, channels), 255, "uint8")
    grids = np.random.default_rng(0).random((2, h, w))
    figure = plots.plot_overlays(images, grids, opacity=1.0)
    pixels = read_pixels(figure, tmp_path / "overlay.png")
    lowest, span = grids.min(), np.ptp(grids)
    for axes, grid in zip(panels_of(figure), grids):
        drawn = axes.images[1]
        np.testing.assert_allclose(drawn.get_array(), grid, rtol=1e-6)
        for (r, c), value in np.ndenumerate(grid):
            share = (value - lowest) / span
            color = np.array(drawn.cmap(share)[:3])
            shows = 0.2 + 0.8 * share  # What is left lets white through.
            want = 255 * (shows * color + 1 - shows)
            for x in (c * size, (c + 1) * size - 1):
                for y in (r * size, (r + 1) * size - 1):
                    got = pixel_at(pixels, axes, x, y)
                    np.testing.assert_allclose(got, want, atol=3)


def test_a_smooth_overlay_has_the_values_at_the_centres(tmp_path):
    images = np.full((1, 30, 30, 1), 255, "uint8")
    grids = np.array([[[0, 1, 0], [1, 0, 1], [0, 1, 0.0]]])
    figure = plots.plot_overlays(images, grids, opacity=1.0, smooth=True)
    pixels = read_pixels(figure, tmp_path / "smooth.png")
    axes = panels_of(figure)[0]
    sharp = plots.plot_overlays(images, grids, opacity=1.0)
    others = read_pixels(sharp, tmp_path / "sharp.png")
    for x in (4.5, 14.5, 24.5):
        for y in (4.5, 14.5, 24.5):
            np.testing.assert_allclose(
                pixel_at(pixels, axes, x, y),
                pixel_at(others, axes, x, y),
                atol=12,
            )
    # In between it is in between.
    middle = pixel_at(pixels, axes, 9.5, 4.5)
    ends = [pixel_at(pixels, axes, x, 4.5) for x in (4.5, 14.5)]
    assert np.abs(middle - ends).sum(-1).min() > 60


def test_a_grid_may_reach_beyond_the_image():
    """A stem has padded 61 pixels; the padding is not shown."""
    images = np.zeros((1, 61, 16, 3), "uint8")
    figure = plots.plot_overlays(images, np.ones((1, 8, 2)), patch_size=8)
    [axes] = panels_of(figure)
    assert axes.images[1].get_extent() == [-0.5, 15.5, 63.5, -0.5]
    assert axes.get_xlim() == (-0.5, 15.5)
    assert axes.get_ylim() == (60.5, -0.5)


def test_overlays_share_their_scale_and_have_titles():
    images = np.zeros((5, 8, 8, 1), "uint8")
    grids = np.linspace(0.1, 0.9, 5 * 4).reshape(5, 2, 2)
    titles = [f"a class\n{i} %" for i in range(5)]
    figure = plots.plot_overlays(images, grids, titles, columns=2)
    panels = panels_of(figure)
    assert [axes.get_title() for axes in panels] == titles
    for axes in panels:
        assert axes.images[1].get_clim() == pytest.approx((0.1, 0.9))
    [bar] = bars_of(figure)
    assert bar.get_ylim() == pytest.approx((0.1, 0.9))
    plots.render(figure)  # Lays it out.
    assert all(text.endswith("%") for text in tick_texts(bar.yaxis))
    # Two in a row, three rows, from above.
    places = np.array([axes.get_position().p0 for axes in panels])
    assert len(set(places[:, 0])) == 2
    assert (np.diff(places[::2, 1]) < 0).all()
    np.testing.assert_allclose(places[1::2, 1], places[:4:2, 1])


def test_what_lies_below_is_grey_in_the_order_of_luminance():
    colors = np.eye(3, dtype="uint8") * 255  # Red, green, blue.
    images = np.stack([colors, colors])[:, :, None]  # (2, 3, 1, 3)
    figure = plots.plot_overlays(images, np.ones((2, 3, 1)))
    red, green, blue = panels_of(figure)[0].images[0].get_array()[:, 0]
    assert blue < red < green
    white = plots.plot_overlays(images * 0 + 255, np.ones((2, 3, 1)))
    drawn = panels_of(white)[0].images[0]
    np.testing.assert_allclose(drawn.get_array(), 255)
