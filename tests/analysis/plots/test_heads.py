"""Where each head looks, block by block."""

import numpy as np
import pytest
from matplotlib.collections import PatchCollection

from keras_vit.analysis import plots
from tests.analysis.plots.made import (
    bars_of,
    made,
    panels_of,
    tick_texts,
    tile_of,
    value_at,
)


@pytest.mark.parametrize("query", [None, (1, 2), (0, 1)])
@pytest.mark.parametrize(
    "prefix, reads_patches", [(1, False), (1, True), (0, True)]
)
def test_heads_are_blocks_from_above(query, prefix, reads_patches):
    inspection = made(num_prefix_tokens=prefix, reads_patches=reads_patches)
    figure = plots.plot_heads(inspection, 1, query)
    picture, axes = panels_of(figure)
    np.testing.assert_array_equal(
        picture.images[0].get_array(), inspection.pixels[1]
    )
    assert tick_texts(axes.yaxis) == ["1", "2", "3"]
    assert tick_texts(axes.xaxis) == ["1", "2"]
    maps = inspection.maps.astype("float32")
    for layer in range(3):
        for head in range(2):
            matrix = maps[layer, 1, head][:, prefix:]
            if query is not None:
                want = matrix[prefix + query[0] * 3 + query[1]]
            else:
                want = matrix[prefix:].mean(0) if reads_patches else matrix[0]
            got = tile_of(axes, layer, head, (2, 3))
            np.testing.assert_allclose(got, want.reshape(2, 3), rtol=1e-5)


def test_the_patch_that_looks_is_marked_everywhere():
    inspection = made()
    figure = plots.plot_heads(inspection, query=(1, 2))
    picture, axes = panels_of(figure)
    [mark] = [c for c in picture.collections if isinstance(c, PatchCollection)]
    [path] = mark.get_paths()
    box = path.get_extents()
    # Row 1 and column 2 of patches of 4 pixels.
    assert (box.x0, box.x1, box.y0, box.y1) == (7.5, 11.5, 3.5, 7.5)
    [marks] = [c for c in axes.collections if isinstance(c, PatchCollection)]
    assert len(marks.get_paths()) == 6
    inner = inspection.maps[:, 0, :, 1 + 5, 1 + 5].astype("float32").ravel()
    for path, want in zip(marks.get_paths(), inner):
        box = path.get_extents()
        assert box.width == pytest.approx(1) and box.height == pytest.approx(1)
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        assert value_at(axes.images[0], x, y) == pytest.approx(want)


def test_each_head_may_have_its_own_scale():
    inspection = made()
    figure = plots.plot_heads(inspection, scale="each")
    axes = panels_of(figure)[1]
    assert axes.images[0].get_clim() == (0, 1)
    for layer in range(3):
        for head in range(2):
            row = inspection.maps[layer, 0, head, 0, 1:].astype("float32")
            got = tile_of(axes, layer, head, (2, 3)).ravel()
            np.testing.assert_allclose(got, row / row.max(), rtol=1e-6)


def test_one_peaked_head_leaves_colours_for_the_others():
    maps = np.full((12, 1, 12, 17, 17), 1 / 17, "float16")
    maps[3, 0, 4, 0] = np.eye(17)[5]
    figure = plots.plot_heads(made(4, 4, maps=maps, batch=1))
    norm = panels_of(figure)[1].images[0].norm
    assert norm.vmax == pytest.approx(1 / 17, rel=1e-3)
    assert bars_of(figure)[0]._colorbar.extend == "max"


@pytest.mark.parametrize(
    "layers, heads, h, w", [(32, 16, 16, 16), (2, 3, 2, 9)]
)
def test_tiles_of_heads_are_large_enough_to_see(layers, heads, h, w):
    """At least three pixels per cell, and room for the numbers."""
    length = h * w + 1
    maps = np.broadcast_to(np.float16(0.1), (layers, 1, heads, length, length))
    inspection = made(h, w, layers=layers, heads=heads, batch=1, maps=maps)
    figure = plots.plot_heads(inspection)
    axes = panels_of(figure)[1]
    scale = axes.transData.transform([(0, 0), (1, 1)])
    assert (np.abs(scale[1] - scale[0]) > 2.5).all()
    plots.render(figure)  # Lays it out.
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [t.get_window_extent() for t in axis.get_ticklabels()]
        for a, b in zip(boxes, boxes[1:]):
            assert not a.overlaps(b)
