"""Names in scripts that the default font does not have."""

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.font_manager import fontManager

from keras_vit.analysis import plots
from keras_vit.analysis.plots import style

CAT = "\u732b"  # In Chinese and Japanese.
NAME = f"{CAT} cat"


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Make only the fonts of matplotlib installed; return their list."""
    style._find_families.cache_clear()
    own = [f for f in fontManager.ttflist if "matplotlib" in f.fname]
    monkeypatch.setattr(fontManager, "ttflist", own)
    yield own
    style._find_families.cache_clear()


def install_font(path, character):
    """Install a font in which a character is a filled square."""
    pen = TTGlyphPen(None)
    for corner in [(0, 0), (0, 900), (900, 900), (900, 0)]:
        (pen.lineTo if corner != (0, 0) else pen.moveTo)(corner)
    pen.closePath()
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(character): "square"})
    empty = TTGlyphPen(None).glyph()
    builder.setupGlyf({".notdef": empty, "square": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (0, 0), "square": (1000, 0)})
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Squares", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    fontManager.addfont(path)


def draw():
    images = np.full((1, 16, 16, 3), 255, "uint8")
    figure = plots.plot_overlays(images, np.ones((1, 2, 2)), [NAME])
    return plots.render(figure)


def test_the_usual_letters_need_no_other_font():
    families = style.families_for("H\u00e4user\nstra\u00dfe 70 %")
    assert families == style.families_for("abc")


def test_a_font_that_has_the_characters_is_taken(tmp_path):
    with pytest.warns(UserWarning, match="No installed font has the char"):
        boxes = draw()
    style._find_families.cache_clear()
    install_font(tmp_path / "squares.ttf", CAT)
    assert style.families_for(NAME)[-1] == "Squares"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        squares = draw()
    # A filled square has more dark pixels than the outline of a box.
    assert (squares < 100).sum() > (boxes < 100).sum()


def test_what_no_font_has_is_said_once():
    with pytest.warns(UserWarning, match=f"'{CAT}'.*drawn as boxes") as found:
        assert style.families_for(NAME) == style.families_for("abc")
        style.families_for(NAME)
    assert len(found) == 1
