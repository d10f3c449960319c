"""Pictures, by what is drawn in them: values, places, colours, pixels."""

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    Inspection,
    PrincipalFilters,
    inspect_model,
    mean_attention_distance,
    plots,
)
from keras_vit.analysis.embeddings import scale_filters
from keras_vit.analysis.plots.style import DPI
from tests.tiny import noise, randomize, tiny_config


def made(h=2, w=3, patch_size=4, layers=3, heads=2, batch=2, **changes):
    """Return an Inspection of known random numbers, which cannot be written.

    `changes` replace its fields.
    """
    draws = np.random.default_rng(h * w)
    prefix = changes.get("num_prefix_tokens", 1)
    length = h * w + prefix
    if "maps" not in changes:
        maps = draws.random((layers, batch, heads, length, length))
        maps /= maps.sum(axis=-1, keepdims=True)
        changes["maps"] = maps.astype("float16")
    size = (h * patch_size, w * patch_size)
    inspection = Inspection(
        **{
            "model_name": "made",
            "config": tiny_config(image_size=size, patch_size=patch_size),
            "image_names": tuple(f"{i}.png" for i in range(batch)),
            "pixels": draws.integers(0, 256, (batch, *size, 3), "uint8"),
            "grid_size": (h, w),
            "num_prefix_tokens": prefix,
            "reads_patches": False,
            "rollouts": draws.random((batch, length, length)),
            "token_norms": draws.uniform(9, 11, (layers, batch, length)),
            "distances": draws.uniform(1, 9, (layers, heads)),
            "similarity": draws.uniform(0.1, 1, (h, w, h, w)),
            "filters": None,
            "class_names": ("cat", "dog", "fish"),
            "probabilities": np.tile([0.2, 0.7, 0.1], (batch, 1)),
            "top_classes": np.tile([1, 0], (batch, 1)),
            "relevances": draws.random((batch, 2, length, length)),
            **changes,
        }
    )
    for value in vars(inspection).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return inspection


def value_at(drawn, x, y):
    """Return what an image of matplotlib shows at (x, y) of its axes."""
    left, right, bottom, top = drawn.get_extent()
    values = drawn.get_array()
    rows, columns = values.shape[:2]
    column = int((x - left) / (right - left) * columns)
    row = int((y - top) / (bottom - top) * rows)
    return values[row, column]


def tile_of(axes, row, column, grid_size):
    """Return the cells of the tile over these numbers of the axes."""
    h, w = grid_size
    # The tick is at the middle of the tile; a cell is one unit.
    x, y = axes.get_xticks()[column], axes.get_yticks()[row]
    [drawn] = axes.images
    return np.array(
        [
            [
                value_at(drawn, x - (w - 1) / 2 + c, y - (h - 1) / 2 + r)
                for c in range(w)
            ]
            for r in range(h)
        ]
    )


def tick_texts(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


def bars_of(figure):
    """Return the axes of the colour bars."""
    return [a for a in figure.axes if hasattr(a, "_colorbar")]


def panels_of(figure):
    return [a for a in figure.axes if a not in bars_of(figure)]


def read_pixels(figure, path):
    plots.save_figure(figure, path)
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def pixel_at(pixels, axes, x, y):
    """Return the colour of a picture at (x, y) of the axes in it."""
    column, up = axes.transData.transform((x, y))
    return pixels[int(len(pixels) - up), int(column)]


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
    """A stem has padded 61 pixels; what is not there is not shown."""
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


@pytest.mark.parametrize("reads_patches", [False, True])
def test_readings_are_what_the_head_reads(reads_patches):
    inspection = made(reads_patches=reads_patches)
    figure = plots.plot_readings(inspection)
    panels = np.array(panels_of(figure)).reshape(2, 4)
    for i, row in enumerate(panels):
        titles = [axes.get_title() for axes in row]
        wanted = [f"{i}.png", "rollout", "dog\n70.0%", "cat\n20.0%"]
        assert titles == wanted
        np.testing.assert_array_equal(
            row[0].images[0].get_array(), inspection.pixels[i]
        )
        for axes, matrix in zip(
            row[1:], (inspection.rollouts[i], *inspection.relevances[i])
        ):
            read = matrix[1:].mean(0) if reads_patches else matrix[0]
            want = read[1:].reshape(2, 3)
            if axes is not row[1]:
                want = want / want.sum()
            got = axes.images[1].get_array()
            np.testing.assert_allclose(got, want, rtol=1e-5)
    # One scale for rollouts, one for relevances; each has its bar.
    for columns, bar in zip((panels[:, 1:2], panels[:, 2:]), bars_of(figure)):
        [limits] = {axes.images[1].get_clim() for axes in columns.flat}
        assert bar.get_xlim() == limits


def test_readings_of_a_model_without_a_head_are_its_rollouts():
    nothing = dict.fromkeys(("probabilities", "top_classes", "relevances"))
    figure = plots.plot_readings(made(**nothing))
    titles = [axes.get_title() for axes in panels_of(figure)]
    assert titles == ["0.png", "rollout", "1.png", "rollout"]
    assert len(bars_of(figure)) == 1


@pytest.mark.parametrize("pooling", ["token", "avg"])
def test_classes_that_nothing_speaks_for_are_said_to_be_so(pooling):
    """A head of zeros, as that of a new model, has no gradient."""
    model = randomize(
        VisionTransformer(
            tiny_config(num_classes=3, pooling=pooling, image_size=16)
        )
    )
    head = model.get_layer("predictions")
    head.set_weights([0 * weight for weight in head.get_weights()])
    images = noise(2, 16, 16, 3)
    inspection = inspect_model(model, images, num_classes=2)
    figure = plots.plot_readings(inspection)
    panels = np.array(panels_of(figure)).reshape(2, 4)
    for axes in panels[:, 2:].flat:
        assert axes.get_title().endswith("33.3%\nno patch speaks for it")
        assert not axes.images[1].get_array().any()
    assert [bar.get_xlabel() for bar in bars_of(figure)] == [
        "share of attention"
    ]
    plots.render(figure)  # Lays it out. The titles have room, all three lines.
    for above, axes in zip(panels[0, 2:], panels[1, 2:]):
        free = above.get_window_extent().y0 - axes.title.get_window_extent().y1
        assert free > 0.05 * DPI
    # Of one class the weights are known: that one is drawn, and has a bar.
    kernel, bias = head.get_weights()
    kernel[:, 1] = 1e-3 * np.arange(len(kernel))
    head.set_weights([kernel, bias + [0, 9, 0]])
    inspection = inspect_model(model, images, num_classes=2)
    figure = plots.plot_readings(inspection)
    panels = np.array(panels_of(figure)).reshape(2, 4)
    for axes in panels[:, 2]:
        assert "no patch" not in axes.get_title()
        assert axes.images[1].get_array().sum() == pytest.approx(1)
    for axes in panels[:, 3]:
        assert axes.get_title().endswith("no patch speaks for it")
    assert len(bars_of(figure)) == 2


@pytest.mark.parametrize("spread", [1.0, 0.03, 1e-3, 1e-5])
@pytest.mark.parametrize("h, w", [(2, 3), (6, 1), (1, 1)])
def test_numbers_of_the_bars_stay_within_them(h, w, spread):
    """However many digits tell them apart, on square and narrow images."""
    length = h * w + 1
    draws = np.random.default_rng(0)
    rollouts = 0.007 * (1 + spread * draws.random((2, length, length)))
    relevances = 1 + spread * draws.random((2, 1, length, length))
    inspection = made(
        h,
        w,
        rollouts=rollouts,
        relevances=relevances,
        top_classes=np.array([[1], [1]]),
    )
    figure = plots.plot_readings(inspection)
    plots.render(figure)  # Lays it out.
    bars = bars_of(figure)
    assert len(bars) == 2
    for bar in bars:
        low, high = bar.get_xlim()
        boxes = [
            tick.label1.get_window_extent()
            for tick in bar.xaxis.get_major_ticks()
            if low <= tick.get_loc() <= high
        ]
        assert len(boxes) >= 2
        room = bar.get_window_extent()
        for box in boxes:
            assert box.x0 > room.x0 - 1 and box.x1 < room.x1 + 1
        for a, b in zip(boxes, boxes[1:]):
            assert not a.overlaps(b)


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
    """Three pixels a cell at least, and room for the numbers beside."""
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


@pytest.mark.parametrize("prefix", [0, 1])
def test_lengths_of_tokens_are_summed_up_by_block(prefix):
    """The band leaves out a twentieth at each end; numpy says where."""
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


def film():
    """Return frames of one number each, rising, and their steps."""
    frames = np.arange(1, 5) / 4
    frames = np.broadcast_to(frames[:, None, None, None, None], (4, 2, 3, 2, 3))
    return frames, [0, 10, 200, 3000]


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


def test_some_frames_show_how_positions_were_learned():
    frames, steps = film()
    figure = plots.plot_position_learning(frames, steps, num_frames=3)
    panels = panels_of(figure)
    titles = [axes.get_title() for axes in panels]
    assert titles == ["update 0", "update 200", "update 3,000"]
    assert {axes.images[0].get_clim() for axes in panels} == {(0, 1)}
    shown = [axes.images[0].get_array()[0, 0] for axes in panels]
    assert shown == [0.25, 0.75, 1]
    # Not more than there are.
    few = plots.plot_position_learning(frames, steps, num_frames=9)
    assert len(panels_of(few)) == 4


def draw_everything(inspection):
    return {
        "readings": plots.plot_readings(inspection),
        "heads": plots.plot_heads(inspection, query=(0, 0)),
        "distances": plots.plot_distances(inspection.distances, (2, 3), 4),
        "similarity": plots.plot_position_similarity(inspection.similarity),
        "norms": plots.plot_token_norms(inspection),
    }


def test_files_are_the_same_to_the_byte_each_time(tmp_path):
    """Nothing of the day, of the process or of what was drawn before."""
    before = dict(rcParams)
    for name, figure in draw_everything(made()).items():
        plots.save_figure(figure, tmp_path / f"{name}.svg")
    plots.save_figure(figure, tmp_path / "norms.png")
    for name, figure in draw_everything(made()).items():
        plots.save_figure(figure, tmp_path / "again.svg")
        again = (tmp_path / "again.svg").read_bytes()
        assert again == (tmp_path / f"{name}.svg").read_bytes(), name
    plots.save_figure(figure, tmp_path / "again.png")
    again = (tmp_path / "again.png").read_bytes()
    assert again == (tmp_path / "norms.png").read_bytes()
    svg = (tmp_path / "heads.svg").read_text()
    assert svg.startswith("<?xml") and "dc:date" not in svg
    assert again[:4] == b"\x89PNG"
    assert dict(rcParams) == before
    assert not list(tmp_path.glob(".draft*"))


def test_nothing_is_cut_off():
    """All that is drawn lies inside of the figure, of any shape of image."""
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
    """What is called so is drawn so; half a formula would be an error."""
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


def test_a_figure_that_cannot_be_written_leaves_the_old_file(
    tmp_path, monkeypatch
):
    path = tmp_path / "picture.png"
    path.write_bytes(b"old")
    figure = plots.plot_position_similarity(np.ones((2, 2, 2, 2)))

    def fail(draft, **_):
        draft.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError):
        plots.save_figure(figure, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_rendered_pixels_are_those_of_the_file(tmp_path):
    figure = plots.plot_heads(made())
    pixels = read_pixels(figure, tmp_path / "heads.png")
    np.testing.assert_array_equal(plots.render(figure), pixels)


IMAGES, GRIDS = np.zeros((2, 8, 8, 3), "uint8"), np.zeros((2, 2, 2))
SIMILARITIES = np.ones((2, 2, 2, 2, 2))


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
            lambda: plots.plot_position_learning(SIMILARITIES, [0]),
            r"2 frames, steps=\[0\]",
        ),
        (
            lambda: plots.plot_position_learning(SIMILARITIES, [1, 1]),
            "and rise",
        ),
        (
            lambda: plots.plot_position_learning(SIMILARITIES, [0, 1], 0),
            "num_frames=0",
        ),
        (
            lambda: plots.film_position_similarity(
                SIMILARITIES, [0, 1], "a.mp4"
            ),
            r"`path` must end in .gif. Received: path='a.mp4'",
        ),
        (
            lambda: plots.film_position_similarity(
                SIMILARITIES, [0, 1], "a.gif", frames_per_second=0
            ),
            "frames_per_second=0",
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
