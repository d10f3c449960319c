import pathlib

import pytest

from tests.analysis.browsing import open_browser
from trainers.pages import make_table, write_html


def test_titles_and_names_of_rows_are_text():
    assert make_table(["a", "<b>"], [("c & d", ["<td>1</td>"])]) == (
        '<div class="wide"><table><tr><th>a</th><th>&lt;b&gt;</th></tr>'
        "<tr><th>c &amp; d</th><td>1</td></tr></table></div>"
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_own_box", [True, False])
def test_a_wide_table_scrolls_and_the_page_does_not(tmp_path, is_own_box):
    """On the screen of a phone."""
    table = make_table(["accuracy"] * 20, [("saved_models/digits", [])])
    if not is_own_box:  # Else this test could not fail.
        table = table.replace("wide", "other")
    path = pathlib.Path(tmp_path / "page.html")
    write_html(path, "A page", ["<p>A text of several words.</p>", table])
    with open_browser() as browser:
        size = {"width": 380, "height": 700}
        tab = browser.new_context(viewport=size).new_page()
        tab.goto(path.as_uri())
        width = tab.evaluate("document.documentElement.scrollWidth")
    assert (width > 380) != is_own_box
