"""Pictures: numbers at their places, and what all figures promise."""

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.font_manager import fontManager
from matplotlib.text import Text
from PIL import Image

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    PrincipalFilters,
    inspect_model,
    mean_attention_distance,
    plots,
    scale_filters,
)
from keras_vit.analysis.gallery import pictures_of
from keras_vit.analysis.plots import style
from tests.analysis.inspections import HEADLESS, make_inspection
from tests.tiny import noise, randomize, tiny_config


def draw_everything(inspection, name="name"):
    figures = {name: draw() for name, draw in pictures_of(inspection)}
    grids = inspection.read_grid(inspection.rollouts)
    figures["query"] = plots.plot_heads(inspection, query=(0, 0))
    figures["overlays"] = plots.plot_overlays(
        inspection.pixels,
        grids,
        [f"{name[:18]}\n70 %"] * len(grids),
        label=name,
    )
    figures["representations"] = plots.plot_representation_similarity(
        np.ones((2, 2)), (name, name)
    )
    return figures


def bars_of(figure):
    """Return the axes of the colour bars."""
    return [a for a in figure.axes if hasattr(a, "_colorbar")]


def panels_of(figure):
    return [a for a in figure.axes if a not in bars_of(figure)]


def tick_texts(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


def tiles_of(axes, rows, columns):
    """Return the tiles of an axes, in the order of their places."""
    corners = [image.get_extent() for image in axes.images]
    order = sorted(range(len(corners)), key=lambda i: corners[i][:4:3][::-1])
    tiles = np.array([axes.images[i].get_array() for i in order])
    return tiles.reshape(rows, columns, *tiles.shape[1:])


# What all figures promise.


@pytest.mark.parametrize("shape", [(2, 2), (1, 16), (32, 2)])
def test_nothing_is_cut_off(shape):
    """Everything drawn is inside the figure, for any shape of the images."""
    name = "a very long name of a file of a photo.jpeg"
    inspection = make_inspection(
        shape, image_names=(name,) * 2, class_names=(name,) * 6
    )
    for kind, figure in draw_everything(inspection, name).items():
        plots.render(figure)  # Lays it out.
        box = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert box.x0 >= 0 and box.y0 >= 0, (kind, box)
        assert box.x1 <= width and box.y1 <= height, (kind, box)


def test_a_dollar_in_a_name_begins_no_formula():
    """The name is drawn as it is; half a formula would be an error."""
    name = "dollar$x_{1$y^.jpg"
    inspection = make_inspection(
        image_names=(name,) * 2, class_names=(name,) * 6
    )
    drawn = {}
    for kind, figure in draw_everything(inspection, name).items():
        plots.render(figure)
        texts = [text.get_text() for text in figure.findobj(Text)]
        drawn[kind] = sum(name in text for text in texts)
    counts = {"reading": 8, "norms": 2, "overlays": 3, "representations": 2}
    counts |= dict.fromkeys(("heads_1", "heads_2", "query"), 1)
    counts |= dict.fromkeys(("distances", "positions", "filters"), 0)
    assert drawn == counts


def test_files_are_the_same_to_the_byte_each_time(tmp_path):
    """Independent of the date, of the process and of earlier figures."""
    before = dict(rcParams)
    for name, figure in draw_everything(make_inspection()).items():
        plots.save_figure(figure, tmp_path / f"{name}.svg")
        plots.save_figure(figure, tmp_path / f"{name}.png")
    for name, figure in draw_everything(make_inspection()).items():
        for suffix in (".svg", ".png"):
            plots.save_figure(figure, tmp_path / f"again{suffix}")
            again = (tmp_path / f"again{suffix}").read_bytes()
            assert again == (tmp_path / f"{name}{suffix}").read_bytes(), name
    assert "dc:date" not in (tmp_path / "query.svg").read_text()
    with Image.open(tmp_path / "query.png") as image:
        written = np.asarray(image.convert("RGB"))
    again = plots.render(plots.plot_heads(make_inspection(), query=(0, 0)))
    np.testing.assert_array_equal(again, written)
    assert dict(rcParams) == before


IMAGES, GRIDS = np.zeros((2, 8, 8, 3), "uint8"), np.zeros((2, 2, 2))
SEEN = make_inspection()


@pytest.mark.parametrize(
    "draw, message",
    [
        (lambda: plots.plot_overlays(IMAGES / 2, GRIDS), "`images`.*float64"),
        (lambda: plots.plot_overlays(IMAGES[..., :2], GRIDS), "`images`"),
        (lambda: plots.plot_overlays(IMAGES, GRIDS[:1]), "`grids`.*1 grids"),
        (lambda: plots.plot_overlays(IMAGES, GRIDS[0]), "`grids`"),
        (lambda: plots.plot_overlays(IMAGES, GRIDS, ["a"]), "`titles`.*1"),
        (lambda: plots.plot_heads(SEEN, 2), "`image`.*image=2"),
        (lambda: plots.plot_heads(SEEN, -1), "`image`.*image=-1"),
        (lambda: plots.plot_heads(SEEN, 0, (3, 0)), r"`query`.*\(3, 0\)"),
        (lambda: plots.plot_heads(SEEN, 0, (0, 4)), r"`query`.*\(0, 4\)"),
        (lambda: plots.plot_distances(np.ones(3), (1, 3), 8), "`distances`"),
        (
            lambda: plots.plot_position_similarity(np.ones((2, 2, 2, 3))),
            r"`similarity`.*\(2, 2, 2, 3\)",
        ),
        (
            lambda: plots.plot_filters(
                PrincipalFilters(np.ones((3, 2, 2, 4)), np.ones(3))
            ),
            r"`filters`.*\(3, 2, 2, 4\)",
        ),
        (
            lambda: plots.plot_representation_similarity(
                np.ones((2, 2)), ("a",)
            ),
            "`model_names`",
        ),
        (lambda: plots.plot_token_norms(SEEN, block=3), "`block`.*block=3"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


# Heads.


@pytest.mark.parametrize("query", [None, (1, 2), (0, 1)])
@pytest.mark.parametrize(
    "prefix, reads_patches", [(1, False), (1, True), (0, True)]
)
def test_heads_are_blocks_from_above(query, prefix, reads_patches):
    inspection = make_inspection(
        num_prefix_tokens=prefix, reads_patches=reads_patches
    )
    figure = plots.plot_heads(inspection, 1, query)
    picture, axes = panels_of(figure)
    np.testing.assert_array_equal(
        picture.images[0].get_array(), inspection.pixels[1]
    )
    assert tick_texts(axes.yaxis) == ["1", "2", "3"]
    assert tick_texts(axes.xaxis) == ["1", "2"]
    maps = inspection.maps[:, 1].astype("float32")[..., prefix:]
    if query is not None:
        want = maps[:, :, prefix + query[0] * 4 + query[1]]
    elif reads_patches:
        want = maps[:, :, prefix:].mean(axis=2)
    else:
        want = maps[:, :, 0]
    got = tiles_of(axes, 3, 2)
    np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-5)


def test_the_patch_that_looks_is_marked_everywhere():
    picture, axes = panels_of(plots.plot_heads(SEEN, query=(1, 2)))
    [mark] = [c for c in picture.collections if isinstance(c, PatchCollection)]
    [box] = [path.get_extents() for path in mark.get_paths()]
    # Row 1 and column 2 of patches of 8 pixels.
    assert (box.x0, box.x1, box.y0, box.y1) == (15.5, 23.5, 7.5, 15.5)
    [marks] = [c for c in axes.collections if isinstance(c, PatchCollection)]
    boxes = [path.get_extents() for path in marks.get_paths()]
    for box, tile in zip(boxes, axes.images, strict=True):
        left, _, _, top = tile.get_extent()
        assert (box.x0, box.y0) == pytest.approx((left + 2, top + 1))
        assert (box.width, box.height) == pytest.approx((1, 1))


def test_one_peaked_head_leaves_colours_for_the_others():
    maps = np.full((12, 1, 12, 17, 17), 1 / 17, "float16")
    maps[3, 0, 4, 0] = np.eye(17)[5]
    figure = plots.plot_heads(make_inspection((4, 4), maps=maps, images=1))
    norm = panels_of(figure)[1].images[0].norm
    assert norm.vmax == pytest.approx(1 / 17, rel=1e-3)
    assert bars_of(figure)[0]._colorbar.extend == "max"


# Readings and overlays.


@pytest.mark.parametrize("reads_patches", [False, True])
def test_readings_are_what_the_head_reads(reads_patches):
    inspection = make_inspection(reads_patches=reads_patches)
    figure = plots.plot_readings(inspection)
    panels = np.array(panels_of(figure)).reshape(2, 5)
    for i, row in enumerate(panels):
        classes = [
            f"class {c}\n{inspection.probabilities[i, c]:.1%}"
            for c in inspection.top_classes[i]
        ]
        titles = [f"photo {i + 1}.jpg", "rollout", *classes]
        assert [axes.get_title() for axes in row] == titles
        np.testing.assert_array_equal(
            row[0].images[0].get_array(), inspection.pixels[i]
        )
        for axes, matrix in zip(
            row[1:], (inspection.rollouts[i], *inspection.relevances[i])
        ):
            read = matrix[1:].mean(0) if reads_patches else matrix[0]
            want = read[1:].reshape(3, 4)
            if axes is not row[1]:
                want = want / want.sum()
            got = axes.images[1].get_array()
            np.testing.assert_allclose(got, want, rtol=1e-5)
    # One scale for rollouts, one for relevances; each has its bar.
    for columns, bar in zip((panels[:, 1:2], panels[:, 2:]), bars_of(figure)):
        [limits] = {axes.images[1].get_clim() for axes in columns.flat}
        assert bar.get_ylim() == limits


def test_a_class_that_nothing_speaks_for_does_not_change_the_scale():
    relevances = SEEN.relevances.copy()
    relevances[0, 0] = np.eye(13)
    figure = plots.plot_readings(make_inspection(relevances=relevances))
    panels = np.array(panels_of(figure)).reshape(2, 5)[:, 2:]
    assert "no patch" in panels[0, 0].get_title()
    spoken = [axes.images[1].get_array() for axes in panels.flat][1:]
    low, high = bars_of(figure)[1].get_ylim()
    assert low == pytest.approx(np.min(spoken)) and low > 0
    assert high == pytest.approx(np.max(spoken))


def test_of_a_model_without_a_head_the_rollouts_remain():
    figure = plots.plot_readings(make_inspection(**HEADLESS))
    titles = [axes.get_title() for axes in panels_of(figure)]
    assert titles == ["photo 1.jpg", "rollout", "photo 2.jpg", "rollout"]
    assert len(bars_of(figure)) == 1


@pytest.mark.parametrize("pooling", ["token", "avg"])
def test_classes_that_nothing_speaks_for_are_said_to_be_so(pooling):
    """A head of zeros, as that of a new model, has no gradient."""
    config = tiny_config(num_classes=3, pooling=pooling, image_size=16)
    model = randomize(VisionTransformer(config))
    head = model.get_layer("predictions")
    head.set_weights([0 * weight for weight in head.get_weights()])
    inspection = inspect_model(model, noise(2, 16, 16, 3), num_classes=2)
    figure = plots.plot_readings(inspection)
    panels = np.array(panels_of(figure)).reshape(2, 4)
    for axes in panels[:, 2:].flat:
        assert axes.get_title().endswith("33.3%\nno patch supports it")
        assert not axes.images[1].get_array().any()
    [bar] = bars_of(figure)
    assert bar.get_ylabel() == "share of attention"
    plots.render(figure)  # Lays it out. The titles have room, all three lines.
    for above, axes in zip(panels[0, 2:], panels[1, 2:]):
        free = above.get_window_extent().y0 - axes.title.get_window_extent().y1
        assert free > 0.05 * style.DPI


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("grid_size", [(2, 4), (5, 2)])
def test_an_overlay_lies_over_its_patches(grid_size, channels):
    """As drawn: first and last pixel of each patch have its colour."""
    h, w = grid_size
    size = 4
    images = np.full((2, h * size, w * size, channels), 255, "uint8")
    grids = np.random.default_rng(0).random((2, h, w))
    figure = plots.plot_overlays(images, grids)
    pixels = plots.render(figure).astype(int)
    lowest, span = grids.min(), np.ptp(grids)
    for axes, grid in zip(panels_of(figure), grids):
        drawn = axes.images[1]
        np.testing.assert_allclose(drawn.get_array(), grid, rtol=1e-6)
        for (r, c), value in np.ndenumerate(grid):
            share = (value - lowest) / span
            color = np.array(drawn.cmap(share)[:3])
            # A fifth to all of 85 %; what is left lets white through.
            shows = 0.85 * (0.2 + 0.8 * share)
            want = 255 * (shows * color + 1 - shows)
            for x in (c * size, (c + 1) * size - 1):
                for y in (r * size, (r + 1) * size - 1):
                    column, up = axes.transData.transform((x, y))
                    got = pixels[int(len(pixels) - up), int(column)]
                    np.testing.assert_allclose(got, want, atol=3)


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
    figure = plots.plot_overlays(images, grids, titles)
    panels = panels_of(figure)
    assert [axes.get_title() for axes in panels] == titles
    for axes in panels:
        assert axes.images[1].get_clim() == pytest.approx((0.1, 0.9))
    [bar] = bars_of(figure)
    assert bar.get_ylim() == pytest.approx((0.1, 0.9))
    plots.render(figure)  # Lays it out.
    assert all(text.endswith("%") for text in tick_texts(bar.yaxis))
    # Four in a row, and the fifth below the first.
    x, y = np.array([axes.get_position().p0 for axes in panels]).T
    assert (np.diff(x[:4]) > 0).all() and x[4] == pytest.approx(x[0])
    assert y[4] < y[0] == y[3]


def test_what_lies_below_is_grey_in_the_order_of_luminance():
    colors = np.eye(3, dtype="uint8") * 255  # Red, green, blue.
    images = np.stack([colors, colors])[:, :, None]  # (2, 3, 1, 3)
    figure = plots.plot_overlays(images, np.ones((2, 3, 1)))
    red, green, blue = panels_of(figure)[0].images[0].get_array()[:, 0]
    assert blue < red < green
    white = plots.plot_overlays(images * 0 + 255, np.ones((2, 3, 1)))
    drawn = panels_of(white)[0].images[0]
    np.testing.assert_allclose(drawn.get_array(), 255)


# Distances, filters, positions, representations, norms.


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


@pytest.mark.parametrize("prefix", [0, 1])
def test_a_head_that_gives_all_tokens_the_same_is_on_the_line(prefix):
    length = prefix + 6
    maps = np.full((1, 1, 1, length, length), 1 / length)
    distances = mean_attention_distance(maps, (2, 3), 8)
    axes = plots.plot_distances(distances, (2, 3), 8, prefix).axes[0]
    assert ("patches", "tokens")[prefix] in axes.texts[1].get_text()
    alike = axes.lines[1].get_ydata()
    np.testing.assert_allclose(alike, distances[0, 0], rtol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_are_over_their_whole_range(channels):
    pictures = np.random.default_rng(0).normal(size=(9, 4, 4, channels))
    shares = np.linspace(0.3, 0.02, 9)
    figure = plots.plot_filters(PrincipalFilters(pictures, shares))
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == [f"{s:.1%}" for s in shares]
    for axes, picture in zip(panels, scale_filters(pictures)):
        got = axes.images[0].get_array()
        np.testing.assert_allclose(got, np.broadcast_to(picture, (4, 4, 3)))
    assert f"{shares.sum():.0%} of the variance" in figure.get_suptitle()


@pytest.mark.parametrize("lowest", [0, -1])
@pytest.mark.parametrize("h, w", [(2, 5), (1, 1)])
def test_similarities_are_where_their_patch_is(h, w, lowest):
    similarity = np.random.default_rng(1).uniform(lowest, 1, (h, w, h, w))
    similarity[0, 0, 0, 0] = lowest
    axes = panels_of(plots.plot_position_similarity(similarity))[0]
    np.testing.assert_allclose(tiles_of(axes, h, w), similarity, rtol=1e-6)
    # Cosines below zero have colours of two sides.
    image = axes.images[0]
    assert image.get_clim() == (lowest, 1)
    if lowest:
        assert image.cmap(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.05)


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
    tiles = tiles_of(axes, len(rows), len(columns))[:, :, 0, 0]
    np.testing.assert_allclose(tiles, number[np.ix_(rows, columns)], rtol=1e-6)


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
    norms = np.full((3, 2, 13), 10.0)
    norms[1:, 0, 1 + 6] = 50  # Row 1, column 2 of 3 x 4.
    norms[:, :, 0] = 99  # The class token is none.
    inspection = make_inspection(token_norms=norms)
    left, first, second = plots.plot_token_norms(inspection).axes
    assert first.get_title() == "photo 1.jpg\n1 of 12 behind block 3"
    assert second.get_title() == "photo 2.jpg\n0 of 12 behind block 3"
    [mark] = first.collections
    box = mark.get_paths()[0].get_extents()
    assert (box.x0, box.x1, box.y0, box.y1) == (15.5, 23.5, 7.5, 15.5)
    assert not second.collections[0].get_paths()
    [dots] = [c for c in left.collections if isinstance(c, PathCollection)]
    np.testing.assert_array_equal(dots.get_offsets(), [(2, 50), (3, 50)])
    early = plots.plot_token_norms(inspection, block=0)
    assert early.axes[1].get_title() == "photo 1.jpg\n0 of 12 behind block 1"


@pytest.mark.parametrize("num_registers", [0, 2])
def test_a_register_is_no_class_token(num_registers):
    inspection = make_inspection(
        num_prefix_tokens=2, num_registers=num_registers, reads_patches=True
    )
    axes = plots.plot_token_norms(inspection).axes[0]
    labels = [line.get_label() for line in axes.lines]
    assert ("class token" in labels) == (num_registers == 0)


def test_a_single_block_is_seen():
    """A line through one point has no length."""
    axes = plots.plot_token_norms(make_inspection(layers=1)).axes[0]
    median, token = axes.lines[:2]
    assert median.get_marker() == token.get_marker() == "o"
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1) == (0.75, 1.25) and band.height > 0
    distances = plots.plot_distances(np.array([[3.0, 5.0]]), (1, 2), 8)
    mean = distances.axes[0].lines[-1]
    assert mean.get_marker() == "o" and list(mean.get_ydata()) == [4]


@pytest.mark.parametrize("prefix", [0, 1])
def test_norms_of_tokens_are_summed_up_by_block(prefix):
    """The band omits a twentieth at each end, as NumPy's quantiles do."""
    # Skewed: no two of mean, median, largest are alike.
    norms = np.random.default_rng(0).gamma(2, 3, (4, 3, prefix + 25))
    inspection = make_inspection(
        (5, 5),
        images=3,
        token_norms=norms,
        num_prefix_tokens=prefix,
        reads_patches=True,
    )
    left = plots.plot_token_norms(inspection).axes[0]
    patches = np.sort(norms[:, :, prefix:].reshape(4, -1))  # 75 of each block.
    np.testing.assert_allclose(left.lines[0].get_ydata(), patches[:, 37])
    corners = left.collections[0].get_paths()[0].vertices
    for block, values in enumerate(patches, 1):
        found = corners[corners[:, 0] == block, 1]
        wanted = [np.quantile(values, 0.05), np.quantile(values, 0.95)]
        np.testing.assert_allclose([found.min(), found.max()], wanted)
    if prefix:
        token = left.lines[1].get_ydata()
        np.testing.assert_allclose(token, norms[:, :, 0].sum(axis=1) / 3)


# Names in scripts that the default font does not have.


def test_a_font_that_has_the_characters_is_taken(monkeypatch):
    """Of matplotlib's own, which are everywhere."""
    own = [f for f in fontManager.ttflist if "matplotlib" in f.fname]
    without = [f for f in own if "STIX" not in f.name]
    usual, name = style.families_for("abc"), "\u24b6 cat"
    assert style.families_for("H\u00e4user\nstra\u00dfe 70 %") == usual

    def draw(fonts):
        style._find_families.cache_clear()
        monkeypatch.setattr(fontManager, "ttflist", fonts)
        images = np.full((1, 16, 16, 3), 255, "uint8")
        figure = plots.plot_overlays(images, np.ones((1, 2, 2)), [name])
        return plots.render(figure), style.families_for(name)

    with pytest.warns(UserWarning, match="'\u24b6'") as found:
        boxes, families = draw(without)
    assert len(found) == 1 and families == usual
    letters, families = draw(own)  # Warnings are errors.
    assert families == [*usual, "STIXGeneral"]
    assert (letters != boxes).any()
    style._find_families.cache_clear()
