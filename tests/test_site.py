"""The site: its pages, its reference and its figures are whole and true."""

import ast
import dataclasses
import importlib
import pathlib
import re
import runpy
import sys

import griffe
import keras
import numpy as np
import pytest
import yaml

from keras_vit.applications import BUILDERS

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images/background"
SCRIPTS = sorted((DOCS / "figures").glob("[a-z]*.py"))
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
REFERENCE = sorted((DOCS / "reference").glob("*.md"))


def pages_of(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages_of(value) if isinstance(value, list) else [value]


def figures_of(script):
    """Return the names of the files that a script draws."""
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and (
            ast.unparse(node.targets[0]) == "FIGURES"
        ):
            return [key.value for key in node.value.keys]
    return []


def test_every_page_is_in_the_navigation_once():
    pages = sorted(pages_of(SITE["nav"]))
    files = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert pages == sorted(files)


def test_every_figure_is_drawn_by_the_script_of_the_page_that_shows_it():
    drawn = {name: s for s in SCRIPTS for name in figures_of(s)}
    assert sorted(drawn) == sorted(path.name for path in IMAGES.iterdir())
    for name, script in drawn.items():
        page = (DOCS / "background" / f"{script.stem}.md").read_text()
        assert f"(../images/background/{name})" in page


@pytest.mark.parametrize(
    "module",
    ["", ".analysis", ".export", ".layers", ".models", ".serving", ".weights"],
)
def test_every_public_name_is_in_the_reference(module):
    text = "".join(page.read_text() for page in REFERENCE)
    shown = set(re.findall(r"^::: .*\.(\w+)$", text, re.M))
    shown |= {name for name in BUILDERS if f"`{name}`" in text}
    loaded = importlib.import_module(f"keras_vit{module}")
    public = {x for x in loaded.__all__ if callable(getattr(loaded, x))}
    assert {name for name in public if name[0] != "_"} <= shown


def test_what_the_reference_names_exists():
    for page in REFERENCE:
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.M):
            module, name = path.rsplit(".", 1)
            assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("package", ["keras_vit", "trainers"])
def test_sections_of_docstrings_are_understood(package, caplog):
    def parse(part):
        if not part.is_alias:
            if part.docstring:
                part.docstring.parse("google")
            for member in part.members.values():
                parse(member)

    parse(griffe.load(package, search_paths=[ROOT]))
    # Other messages name parameters that stand elsewhere, such as those of
    # `__init__` in the docstring of the class.
    assert [line for line in caplog.messages if "Failed to get" in line] == []


def test_sections_of_docstrings_become_markdown():
    rewrite = runpy.run_path(str(DOCS / "docstrings.py"))["rewrite"]
    text = """Do.

Shapes:
    images: (B, H, W, C), as `model` reads them.
    query, key: (B, T, D). value: the same; B may be
        unknown.

Args:
    images: Two
        lines.

Example:
    >>> do(1)
    2

    >>> do(2)
    3

Reference: Somebody 2021, arXiv:2010.11929, section 1;
    somebody else.
Differs: Not at all."""
    link = "[arXiv:2010.11929](https://arxiv.org/abs/2010.11929)"
    parts = re.split(r"\n\n+", rewrite(text).strip())
    assert parts == [
        "Do.",
        '!!! abstract "Shapes"',
        "    - **images**: (B, H, W, C), as `model` reads them.\n"
        "    - **query, key**: (B, T, D).\n"
        "    - **value**: the same; B may be unknown.",
        "Args:\n    images: Two\n        lines.",
        '!!! example "Example"',
        "    ```pycon\n    >>> do(1)\n    2",
        "    >>> do(2)\n    3\n    ```",
        f"**Reference:** Somebody 2021, {link}, section 1;\nsomebody else.",
        "**Differs:** Not at all.",
    ]


def read_numbers(svg):
    """Return the labels of an SVG, and the numbers its paths are made of."""
    labels = re.findall(r"<!-- (.*?) -->", svg)
    paths = " ".join(re.findall(r'\b(?:d|x|y)="([^"]*)"', svg))
    numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", paths)
    return labels, np.array(numbers, float)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_figures_are_those_that_the_scripts_draw(script, tmp_path, monkeypatch):
    """To half a point: other processors round otherwise."""
    import matplotlib

    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    import style

    style.write(runpy.run_path(str(script)).get("FIGURES", {}), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*figures_of(script)}
    for path in tmp_path.iterdir():
        drawn, committed = path.read_bytes(), (IMAGES / path.name).read_bytes()
        if path.suffix == ".png":
            old, new = (
                keras.utils.img_to_array(keras.utils.load_img(p))
                for p in (IMAGES / path.name, path)
            )
            assert old.shape == new.shape and np.abs(old - new).mean() < 4
            continue
        old, new = (read_numbers(x.decode()) for x in (committed, drawn))
        assert old[0] == new[0]
        if f"Matplotlib v{matplotlib.__version__}" in committed.decode():
            np.testing.assert_allclose(new[1], old[1], atol=0.5)


def test_a_figure_that_differs_by_rounding_keeps_its_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [str(DOCS / "figures"), *sys.path])
    import style

    def draw(height):
        figure, axes = style.plt.subplots(figsize=(2, 1))
        axes.plot([0, 1, 2], [0, height, 1])
        return figure

    def write(height):
        style.write({"line.svg": lambda: draw(height)}, tmp_path)
        return (tmp_path / "line.svg").read_bytes()

    first = write(0.5)
    assert write(0.500001) == first
    assert write(0.6) != first


def test_every_flag_of_a_recipe_is_in_the_reference():
    from trainers.recipes.recipe import Recipe

    names = runpy.run_path(str(DOCS / "docstrings.py"))
    package = griffe.load("trainers", search_paths=[str(ROOT)])
    found = names["find_class"](package, "Recipe")
    names["document_fields"](found)
    text = found.docstring.value.partition("\nArgs:\n")[2]
    rows = dict(re.findall(r"^    (\w+): (.*)$", text, re.M))
    assert list(rows) == [field.name for field in dataclasses.fields(Recipe)]
    for field in dataclasses.fields(Recipe):
        assert rows[field.name] == (field.metadata.get("help") or "A note.")
