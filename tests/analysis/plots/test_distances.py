"""How far each head looks."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from keras_vit.analysis import (
    mean_attention_distance,
    plots,
)


def test_distances_are_a_dot_for_each_head():
    distances = np.random.default_rng(0).uniform(1, 9, (4, 3))
    axes = plots.plot_distances(distances, (1, 2), 8).axes[0]
    [dots] = [c for c in axes.collections if isinstance(c, PathCollection)]
    want = [(i, value) for i, row in enumerate(distances, 1) for value in row]
    np.testing.assert_allclose(dots.get_offsets(), want)
    side, alike, mean = (line.get_ydata() for line in axes.lines)
    # Of two patches 8 pixels apart, half of what all patches see is far.
    assert list(side) == [16, 16] and list(alike) == [4, 4]
    np.testing.assert_allclose(mean, distances.mean(1))
    assert axes.get_ylim()[1] > 16
    texts = " ".join(text.get_text() for text in axes.texts)
    assert "16 px" in texts and "4 px" in texts
    assert "px" in axes.get_ylabel()


@pytest.mark.parametrize("prefix", [0, 1])
def test_a_head_that_gives_all_tokens_the_same_is_on_the_line(prefix):
    length = prefix + 6
    maps = np.full((1, 1, 1, length, length), 1 / length)
    distances = mean_attention_distance(maps, (2, 3), 8)
    axes = plots.plot_distances(distances, (2, 3), 8, prefix).axes[0]
    given = ("patches", "tokens")[prefix]
    assert axes.texts[1].get_text().startswith(f"all {given}\nalike")
    alike = axes.lines[1].get_ydata()
    np.testing.assert_allclose(alike, distances[0, 0], rtol=1e-6)
