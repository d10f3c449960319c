"""Principal filters."""

import numpy as np
import pytest

from keras_vit.analysis import (
    PrincipalFilters,
    plots,
)
from keras_vit.analysis.embeddings import scale_filters


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_are_over_their_whole_range(channels):
    pictures = np.random.default_rng(0).normal(size=(9, 4, 4, channels))
    shares = np.linspace(0.3, 0.02, 9)
    figure = plots.plot_filters(PrincipalFilters(pictures, shares), columns=4)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == [f"{s:.1%}" for s in shares]
    for axes, picture in zip(panels, scale_filters(pictures)):
        got = axes.images[0].get_array()
        np.testing.assert_allclose(got, np.broadcast_to(picture, (4, 4, 3)))
    assert (
        figure.get_suptitle()
        == f"9 components, {shares.sum():.0%} of the variance"
    )
