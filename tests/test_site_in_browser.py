"""The built site in headless Chromium: what it shows fits the column."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.analysis.browsing import PATIENCE, open_browser
from tests.test_site import ROOT, SITE, pages_of

# Material adds the copy buttons when a page has loaded.
HAS_BUTTONS = """() => [...document.querySelectorAll("pre > code")].every(
    (code) => code.parentElement.querySelector(".md-code__nav")
)"""
FIND_WIDE = """() => {
    const wide = [];
    for (const table of document.querySelectorAll(".md-typeset table")) {
        // Material wraps each table into a box that scrolls.
        const box = table.closest(".md-typeset__scrollwrap");
        if (box.scrollWidth > box.clientWidth)
            wide.push(`table: ${table.rows[0].innerText}`);
    }
    for (const code of document.querySelectorAll("pre > code")) {
        const button = code.parentElement.querySelector(".md-code__nav");
        const end = button.getBoundingClientRect().left;
        const range = document.createRange();
        range.selectNodeContents(code);
        if ([...range.getClientRects()].some((box) => box.right > end))
            wide.push(`code: ${code.innerText}`);
    }
    return wide;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    pytest.importorskip("mkdocs")
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            f"--site-dir={folder}",
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def tab():
    """Return a tab of 1280 pixels, as on a small laptop."""
    with open_browser() as browser:
        size = {"width": 1280, "height": 900}
        page = browser.new_context(viewport=size).new_page()
        page.set_default_timeout(PATIENCE)
        yield page


def find_wide(tab, path):
    """Return what is wider than its column on a page."""
    tab.goto(path.as_uri())
    tab.wait_for_function(HAS_BUTTONS)
    return tab.evaluate(FIND_WIDE)


@pytest.mark.slow(25)
def test_tables_and_code_fit_the_column(site, tab):
    names = [
        pathlib.Path(p).with_suffix(".html") for p in pages_of(SITE["nav"])
    ]
    assert len(names) > 40
    wide = {str(name): find_wide(tab, site / name) for name in names}
    assert {name: found for name, found in wide.items() if found} == {}
