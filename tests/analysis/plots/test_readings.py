"""Rollout and relevance over the images."""

import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    inspect_model,
    plots,
)
from keras_vit.analysis.plots.style import DPI
from tests.analysis.plots.made import bars_of, made, panels_of
from tests.tiny import noise, randomize, tiny_config


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


def test_a_class_that_nothing_speaks_for_does_not_change_the_scale():
    relevances = made().relevances.copy()
    relevances[0, 0] = np.eye(7)
    figure = plots.plot_readings(made(relevances=relevances))
    panels = np.array(panels_of(figure)).reshape(2, 4)[:, 2:]
    assert "no patch" in panels[0, 0].get_title()
    spoken = [axes.images[1].get_array() for axes in panels.flat][1:]
    low, high = bars_of(figure)[1].get_xlim()
    assert low == pytest.approx(np.min(spoken)) and low > 0
    assert high == pytest.approx(np.max(spoken))


def test_a_long_name_of_an_image_has_two_lines():
    names = "test image 12: Chinesischer Tempel", "x" * 30
    figure = plots.plot_readings(made(image_names=names))
    titles = [axes.get_title() for axes in panels_of(figure)][::4]
    assert titles == [
        "test image 12:\nChinesischer Tempel",
        "x" * 21 + "\u2026",
    ]


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
        assert axes.get_title().endswith("33.3%\nno patch supports it")
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
        assert axes.get_title().endswith("no patch supports it")
    assert len(bars_of(figure)) == 2


@pytest.mark.parametrize("spread", [1.0, 0.03, 1e-3, 1e-5])
@pytest.mark.parametrize("h, w", [(2, 3), (6, 1), (1, 1)])
def test_numbers_of_the_bars_stay_within_them(h, w, spread):
    """For any number of digits, on square and narrow images."""
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
