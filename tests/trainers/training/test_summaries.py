import numpy as np
import pytest
import tensorflow as tf

from keras_vit.analysis.plots import style
from keras_vit.preprocessing.description import from_range
from trainers.training.pictures import (
    describe_label,
    final_table,
    plot_batch,
    plot_learning_curve,
)
from trainers.training.report import format_metrics

NAMES = ["cat", "dog", "a mouse of a very long name"]


@pytest.fixture
def figures(monkeypatch):
    """Return the list of the figures that are drawn."""
    drawn = []

    new_figure = style.new_figure

    def make(*args, **options):
        drawn.append(new_figure(*args, **options))
        return drawn[-1]

    monkeypatch.setattr(style, "new_figure", make)
    return drawn


def rows(count, **columns):
    return [
        {"step": 10.0 * n, **{name: make(n) for name, make in columns.items()}}
        for n in range(1, count + 1)
    ]


def test_final_table_names_the_last_and_the_best():
    table = final_table(
        rows(
            3,
            loss=lambda n: 1 / n,
            val_accuracy=lambda n: 0.5 if n > 1 else 0.25,
            images_per_second=lambda n: 1000.0 * n,
        ),
        seconds=3725.4,
        folder="saved_models/digits",
    )
    cells = [line.split(maxsplit=1) for line in table.splitlines()]
    assert ["loss", "0.3333"] in cells and ["time", "1:02:05"] in cells
    assert ["images/s", "3,000.0"] in cells
    assert "0.5000 at update 20; not kept" in table
    # Of two evaluations with the same accuracy, that of the lower loss.
    losses = {"val_loss": lambda n: (3.0, 1.0, 2.0)[n - 1]}
    scores = rows(3, val_accuracy=lambda n: 0.5, **losses)
    assert "update 20; this" in final_table(scores, keep_best=True)
    assert final_table(rows(2, val_accuracy=lambda n: n / 4)).endswith("20")
    # A run that had nothing to do.
    assert final_table([], folder="there") == "files  there"


def test_learning_curve_shows_the_figures(figures, tmp_path):
    source = tmp_path / "metrics.csv"
    source.write_text(
        format_metrics(
            rows(
                3,
                loss=lambda n: 1.0 / n,
                accuracy=lambda n: n / 4,
                val_loss=lambda n: 2.0 / n,
                val_accuracy=lambda n: (0.5, 0.75, 0.625)[n - 1],
                learning_rate=lambda n: n * 1e-3,
            )
        )
    )
    plot_learning_curve(source, tmp_path / "curve.png")
    shown = [
        [line.get_ydata().tolist() for line in axes.lines]
        for axes in figures[0].axes
    ]
    assert shown == [
        [[1.0, 0.5, 1 / 3], [2.0, 1.0, 2 / 3]],
        [[75.0, 50.0, 25.0], [50.0, 25.0, 37.5]],
        [[0.001, 0.002, 0.003]],
    ]
    for axes in figures[0].axes:
        for line in axes.lines:
            assert line.get_xdata().tolist() == [10, 20, 30]
    title = figures[0].axes[1].get_title()
    assert title == "test accuracy 62.50%, best 75.00%"


@pytest.mark.parametrize(
    "text",
    [
        format_metrics(rows(1, loss=lambda n: 1.0, val_loss=lambda n: 2.0)),
        format_metrics([{"step": 10, "loss": 1}, {"step": 20, "val_loss": 2}]),
        "epoch,step,loss\n0,10,0.5\n1,20,0.4\n1,20,0.3\n2,30,0.",
        "",
    ],
    ids=["one row", "gaps", "cut", "empty"],
)
def test_learning_curve_of_a_file_with_holes(text, tmp_path):
    source, path = tmp_path / "metrics.csv", tmp_path / "curve.png"
    source.write_text(text)
    plot_learning_curve(source, path)
    assert tf.io.decode_png(path.read_bytes()).shape[0] > 100


@pytest.mark.parametrize(
    "label, text",
    [
        ([0, 0, 1], "a mouse of a ve…"),
        ([0.004, 0.996, 0], "dog"),
        ([0.2, 0.5, 0.3], "dog 50%\na mouse of a ve… 30%"),
        ([0.5, 0.5, 0], "cat 50%\ndog 50%"),
        ([1], "cat"),
        ([0, 0, 0], "no label"),
    ],
)
def test_labels_name_the_two_largest_shares(label, text):
    assert describe_label(np.float32(label), NAMES) == text


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ([0, 0, 0, 0], ["no label"]),
        ([np.nan, np.nan, 0, np.nan], ["no label"]),
        ([1, np.nan, 1, 0], [0, 2]),
        ([0, 1, 0.25, 0], [1, "2 25%"]),
        ([1, 1, 1, 1], [0, 1, "and 2 more"]),
    ],
)
def test_an_image_of_several_labels_names_those_it_has(label, lines):
    names = ["0", "1", "2", "3"]
    text = describe_label(np.float32(label), names, is_several=True)
    assert text.splitlines() == [str(line) for line in lines]


@pytest.mark.parametrize(
    "channels, count, shown", [(1, 1, 1), (3, 11, 11), (1, 40, 32)]
)
def test_batch_shows_the_pixels_and_the_labels(
    figures, tmp_path, channels, count, shown
):
    draws = np.random.default_rng(0)
    images = draws.uniform(-1, 3, (count, 6, 4, channels)).astype("float32")
    labels = np.eye(3, dtype="float32")[draws.integers(0, 3, count)]
    plot_batch(images, labels, NAMES, from_range(-1, 3), tmp_path / "batch.png")
    [axes] = figures[0].axes
    assert len(axes.images) == len(axes.texts) == shown
    width, height = figures[0].get_size_inches()
    assert axes.get_xlim() == (0, width) and axes.get_ylim() == (height, 0)
    for index, (tile, text) in enumerate(zip(axes.images, axes.texts)):
        np.testing.assert_allclose(
            tile.get_array(), np.squeeze((images[index] + 1) / 4), atol=1e-6
        )
        # A grey image is not stretched to black and white.
        assert tile.get_clim() == (0, 1)
        assert text.get_text() == describe_label(labels[index], NAMES)
        left, right, bottom, top = tile.get_extent()
        assert left < text.get_position()[0] < right
        assert bottom < text.get_position()[1] < height
        # Side by side in the order of the batch, upright, undistorted.
        assert 0 <= left and 0 <= top
        row, column = divmod(index, 8)
        assert left // (width / min(shown, 8)) == column
        assert top // (height / -(-shown // 8)) == row
        assert (bottom - top) / (right - left) == pytest.approx(6 / 4)


def test_class_names_may_be_of_any_script(figures, tmp_path, monkeypatch):
    """In a font that has them, and without a warning for each character."""
    asked = []

    def families_for(text):
        asked.append(text)
        return ["DejaVu Serif"]

    monkeypatch.setattr(
        "keras_vit.analysis.plots.style.families_for", families_for
    )
    images, labels = np.zeros((2, 8, 8, 3)), np.eye(2)
    names = ["Kätzchen", "\N{CJK UNIFIED IDEOGRAPH-732B}"]
    plot_batch(images, labels, names, "zero_one", tmp_path / "batch.png")
    assert all(name in asked[0] for name in names)
    [axes] = figures[0].axes
    for text in axes.texts:
        assert text.get_fontfamily() == ["DejaVu Serif"]
