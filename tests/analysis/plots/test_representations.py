"""Similarity of blocks."""

import numpy as np

from keras_vit.analysis import plots
from tests.analysis.plots.made import panels_of


def test_representations_are_compared_block_by_block():
    similarity = np.random.default_rng(0).random((3, 5))
    names = ("one", "a name that is longer than a picture is wide")
    figure = plots.plot_representation_similarity(similarity, names)
    axes = panels_of(figure)[0]
    [drawn] = axes.images
    np.testing.assert_allclose(drawn.get_array(), similarity, rtol=1e-6)
    assert drawn.get_clim() == (0, 1) and drawn.origin == "lower"
    assert drawn.get_extent() == [0.5, 5.5, 0.5, 3.5]  # Blocks from 1.
    assert axes.get_ylabel() == "block of one"
    assert axes.get_xlabel().startswith("block of a name that is")
