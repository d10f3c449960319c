"""Figures as files: the same bytes, replaced as a whole."""

import numpy as np
import pytest
from matplotlib import rcParams

from keras_vit.analysis import plots
from tests.analysis.plots.made import draw_everything, made, read_pixels


def test_files_are_the_same_to_the_byte_each_time(tmp_path):
    """Independent of the date, of the process and of earlier figures."""
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
