"""Lengths of tokens and artefacts."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from keras_vit.analysis import plots
from tests.analysis.plots.made import made


def test_artefact_tokens_are_marked_where_they_are():
    norms = np.full((3, 2, 7), 10.0)
    norms[1:, 0, 1 + 5] = 50  # Row 1, column 2 of 2 x 3.
    norms[:, :, 0] = 99  # The class token is none.
    figure = plots.plot_token_norms(made(token_norms=norms))
    left, first, second = figure.axes
    assert first.get_title() == "0.png\n1 of 6 behind block 3"
    assert second.get_title() == "1.png\n0 of 6 behind block 3"
    [mark] = first.collections
    box = mark.get_paths()[0].get_extents()
    assert (box.x0, box.x1, box.y0, box.y1) == (7.5, 11.5, 3.5, 7.5)
    assert not second.collections[0].get_paths()
    [dots] = [c for c in left.collections if isinstance(c, PathCollection)]
    np.testing.assert_array_equal(dots.get_offsets(), [(2, 50), (3, 50)])
    median, token = left.lines[:2]
    np.testing.assert_array_equal(median.get_ydata(), [10, 10, 10])
    np.testing.assert_array_equal(token.get_ydata(), [99, 99, 99])
    early = plots.plot_token_norms(made(token_norms=norms), block=0)
    assert early.axes[1].get_title() == "0.png\n0 of 6 behind block 1"


def test_a_single_block_is_seen():
    """A line through one point has no length."""
    figure = plots.plot_token_norms(made(layers=1))
    median, token = figure.axes[0].lines[:2]
    assert median.get_marker() == token.get_marker() == "o"
    band = figure.axes[0].collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1) == (0.75, 1.25) and band.height > 0
    distances = plots.plot_distances(np.array([[3.0, 5.0]]), (1, 2), 8)
    mean = distances.axes[0].lines[-1]
    assert mean.get_marker() == "o" and list(mean.get_ydata()) == [4]


@pytest.mark.parametrize("prefix", [0, 1])
def test_lengths_of_tokens_are_summed_up_by_block(prefix):
    """The band omits a twentieth at each end, as NumPy's quantiles do."""
    draws = np.random.default_rng(0)
    # Skewed: no two of mean, median, largest are alike.
    norms = draws.gamma(2, 3, (4, 3, prefix + 25))
    inspection = made(
        5, 5, batch=3, token_norms=norms, num_prefix_tokens=prefix
    )
    left = plots.plot_token_norms(inspection, ratio=1e3).axes[0]
    patches = np.sort(norms[:, :, prefix:].reshape(4, -1))  # 75 of each block.
    np.testing.assert_allclose(left.lines[0].get_ydata(), patches[:, 37])
    [band] = left.collections
    corners = band.get_paths()[0].vertices
    for block, values in enumerate(patches, 1):
        found = corners[corners[:, 0] == block, 1]
        wanted = [np.quantile(values, 0.05), np.quantile(values, 0.95)]
        np.testing.assert_allclose([found.min(), found.max()], wanted)
    texts = [text.get_text() for text in left.get_legend().get_texts()]
    assert texts[:2] == ["90 % of the patches", "their median"]
    if prefix:
        assert texts[2:] == ["class token"]
        token = left.lines[1].get_ydata()
        np.testing.assert_allclose(token, norms[:, :, 0].sum(axis=1) / 3)
