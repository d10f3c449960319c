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
def test_a_wide_table_scrolls_and_the_page_does_not(tmp_path):
    """On the screen of a phone."""
    table = make_table(["accuracy"] * 20, [("saved_models/digits", [])])
    path = pathlib.Path(tmp_path / "page.html")
    widths = []
    with open_browser() as browser:
        size = {"width": 380, "height": 700}
        tab = browser.new_context(viewport=size).new_page()
        # Without its box, the table makes the page wider.
        for part in (table, table.replace("wide", "other")):
            write_html(
                path, "A page", ["<p>A text of several words.</p>", part]
            )
            tab.goto(path.as_uri())
            widths.append(tab.evaluate("document.documentElement.scrollWidth"))
    assert widths[0] <= 380 < widths[1]


FIND_ROWS = """() => {
    const box = document.querySelector(".wide");
    box.scrollLeft = 10_000;
    return [...box.querySelectorAll("tr:not(:first-child)")].map((row) => {
        const cells = [...row.cells].map((x) => x.getBoundingClientRect());
        const line = parseFloat(getComputedStyle(row.cells[1]).lineHeight);
        return [cells[0].left, cells[0].right, row.offsetHeight / line];
    });
}"""


@pytest.mark.slow
def test_names_of_rows_stay_in_sight_on_a_phone(tmp_path):
    """Beside the last columns; and rows are no towers of broken figures."""
    cells = ["<td>0.5000 (95 %: 0.3774 to 0.6226)</td>"] * 4
    names = ["cat", "Donaudampfschifffahrtsgesellschaft"]
    path = pathlib.Path(tmp_path / "page.html")
    table = make_table(["class", *"abcd"], [(name, cells) for name in names])
    write_html(path, "A page", [table])
    with open_browser() as browser:
        size = {"width": 390, "height": 844}
        tab = browser.new_context(viewport=size).new_page()
        tab.goto(path.as_uri())
        rows = tab.evaluate(FIND_ROWS)
    assert len(rows) == 2
    for left, right, lines in rows:
        assert 0 <= left < right <= 195 and lines < 4
