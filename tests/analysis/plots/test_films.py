"""Films of position tables."""

import numpy as np
from matplotlib.colors import Normalize
from PIL import Image

from keras_vit.analysis import plots
from tests.analysis.plots.made import film, panels_of, pixel_at


def test_a_film_has_its_frames_in_order_and_in_one_scale(tmp_path):
    frames, steps = film()
    path = tmp_path / "film.gif"
    plots.film_position_similarity(frames, steps, path, frames_per_second=5)
    figure = plots.plot_position_similarity(frames[0], "update 0")
    plots.render(figure)  # Lays it out.
    axes = panels_of(figure)[0]
    x, y = axes.get_xticks()[1], axes.get_yticks()[1]
    color = axes.images[0].cmap
    norm = Normalize(0, 1)
    with Image.open(path) as content:
        assert content.n_frames == 4
        assert content.info["loop"] == 0
        for index, value in enumerate([0.25, 0.5, 0.75, 1]):
            content.seek(index)
            length = 200 if index < 3 else 2200  # Milliseconds.
            assert content.info["duration"] == length
            pixels = np.asarray(content.convert("RGB")).astype(int)
            want = 255 * np.array(color(norm(value))[:3])
            got = pixel_at(pixels, axes, x, y)
            np.testing.assert_allclose(got, want, atol=8)
    again = tmp_path / "again.gif"
    plots.film_position_similarity(frames, steps, again, frames_per_second=5)
    assert again.read_bytes() == path.read_bytes()
