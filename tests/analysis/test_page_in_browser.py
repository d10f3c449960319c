"""The page as a person uses it, in headless Chromium."""

import re

import numpy as np
import pytest

from keras_vit.analysis import to_grid, write_page
from keras_vit.analysis.page import DETAILS, _render
from tests.analysis.browsing import (
    Visit,
    number_in,
    open_browser,
    settle,
    viridis_places,
)
from tests.analysis.inspections import HEADLESS, make_inspection
from tests.analysis.test_page import NASTY

GRID = (3, 4)
INSPECTION = make_inspection(GRID)
# As finely as numbers are stored, and shown in three digits.
CLOSE = {"rtol": 0.006, "atol": 1e-6}


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(INSPECTION, path)
    return path


@pytest.fixture(scope="module")
def shared_tab(browser):
    return Visit(browser)


@pytest.fixture
def tab(shared_tab):
    yield shared_tab
    shared_tab.check_quiet()


@pytest.fixture
def visit(tab, page_path):
    return tab.go(page_path)


def expect(locator):
    from playwright.sync_api import expect

    return expect(locator)


def attention(inspection, image, block, head, cell):
    """Return the row of a patch: (T,), of the mean of heads for None."""
    maps = inspection.maps[block, image].astype("float32")
    heads = maps.mean(axis=0) if head is None else maps[head]
    return heads[inspection.num_prefix_tokens + cell]


def check_view(
    visit, row, own=None, panel=0, prefix=1, grid_size=GRID, largest=None
):
    """Compare all that a panel shows of a row with its numbers.

    Args:
        largest: What the last colour stands for; None for the largest number
            but that of `own`.
    """
    patches = row[prefix:]
    others = patches.copy()
    if own is not None:
        others[own] = -1
    best = np.argsort(-others, kind="stable")[:5]
    table = visit.table(panel)
    places = [key for key in table if isinstance(key, tuple)]
    # Equal to the eye may be in another order.
    shown = [(r - 1) * grid_size[1] + c - 1 for r, c in places]
    np.testing.assert_allclose(patches[shown], patches[best], rtol=0.02)
    np.testing.assert_allclose(
        [table[place] for place in places],
        patches[shown],
        rtol=0.006,
        atol=patches[best[0]] / 255,
    )
    if own is not None:
        np.testing.assert_allclose(table["Itself"], patches[own], **CLOSE)
    if prefix:
        np.testing.assert_allclose(table["Class token"], row[0], **CLOSE)
    colours = viridis_places(visit.colours(panel=panel))
    largest = others.max() if largest is None else largest
    expected = np.clip(patches / largest, 0, 1).reshape(grid_size)
    np.testing.assert_allclose(colours, expected, atol=0.03)
    legend = visit.panel(panel).locator("figcaption .high").inner_text()
    np.testing.assert_allclose(number_in(legend), largest, **CLOSE)


def test_it_starts_with_what_the_head_reads(visit):
    expect(visit.caption()).to_have_text(
        "Attention in block 3 (last), mean of the heads"
    )
    check_view(visit, attention(INSPECTION, 0, 2, None, -1))
    expect(visit.reading()).to_contain_text("Seen from the class token: most")
    expect(visit.page.locator(".about")).to_contain_text(
        "Blocks, heads, rows and columns are numbered from 1"
    )


def test_hovering_a_patch_shows_where_it_looks(visit):
    for row, column in [(0, 0), (2, 1), (1, 3)]:
        visit.hover(row, column, GRID)
        expect(visit.reading()).to_contain_text(
            f"Seen from row {row + 1}, column {column + 1}:"
        )
        cell = row * GRID[1] + column
        check_view(visit, attention(INSPECTION, 0, 2, None, cell), cell)
        (frame,) = visit.panel().locator(".marks .own").all()
        assert frame.get_attribute("x") == str(column)
        assert frame.get_attribute("y") == str(row)
    # What was there before comes back when the mouse leaves.
    visit.page.mouse.move(1, 1)
    expect(visit.reading()).to_contain_text("Seen from the class token:")


def test_a_click_keeps_the_patch(visit):
    visit.click(2, 0, GRID)
    visit.page.mouse.move(1, 1)
    expect(visit.reading()).to_contain_text("Seen from row 3, column 1:")
    assert visit.page.locator('[value="patch"]').is_checked()
    visit.choose("from", "head")
    expect(visit.reading()).to_contain_text("Seen from the class token:")


def test_the_numbers_of_the_strongest_are_on_the_image(visit):
    expect(visit.reading()).to_contain_text("Seen from")
    marks = visit.panel().locator(".marks text").all()
    found = {
        int(mark.text_content()): (
            int(float(mark.get_attribute("y")) - 0.5) + 1,
            int(float(mark.get_attribute("x")) - 0.5) + 1,
        )
        for mark in marks
    }
    places = [key for key in visit.table() if isinstance(key, tuple)]
    assert [found[n] for n in range(1, 6)] == places


def test_every_value_can_be_read(visit):
    visit.click(1, 1, GRID)
    visit.choose("pointer", "read")
    row = attention(INSPECTION, 0, 2, None, 5)[1:]
    largest = np.delete(row, 5).max()
    for cell in (0, 6, 11):
        y, x = divmod(cell, GRID[1])
        visit.hover(y, x, GRID)
        place = f"Row {y + 1}, column {x + 1} gets "
        expect(visit.reading()).to_contain_text(place)
        text = visit.reading().inner_text()
        assert text.endswith("seen from row 2, column 2.")
        value = number_in(re.search(r"gets (.*?%)", text)[1])
        np.testing.assert_allclose(
            value, row[cell], rtol=0.006, atol=largest / 255
        )


def test_the_keyboard_does_what_the_mouse_does(visit):
    visit.stage().focus()
    at = visit.reading()
    for key, place in [
        ("ArrowDown", (2, 3)),  # The first press shows the middle.
        ("ArrowDown", (3, 3)),
        ("ArrowDown", (3, 3)),
        ("ArrowLeft", (3, 2)),
        ("Home", (3, 1)),
        ("End", (3, 4)),
        ("ArrowUp", (2, 4)),
        ("ArrowRight", (2, 4)),
        ("Control+Home", (1, 1)),
        ("Control+End", (3, 4)),
    ]:
        visit.press(key)
        expect(at).to_contain_text(
            f"Seen from row {place[0]}, column {place[1]}:"
        )
    check_view(visit, attention(INSPECTION, 0, 2, None, 11), 11)
    # Said in words, once it has stayed for a moment.
    expect(visit.page.locator("#announcement")).to_contain_text(
        "Seen from row 3, column 4: most at row"
    )
    visit.choose("pointer", "read")
    visit.stage().focus()
    visit.press("ArrowDown")
    expect(at).to_contain_text("Row 2, column 3 gets")
    visit.press("ArrowUp")
    expect(at).to_contain_text("Row 1, column 3 gets")
    visit.press("Escape")
    expect(at).to_contain_text("Seen from the class token: most")


def test_the_keyboard_reaches_everything(visit):
    names = []
    for _ in range(12):
        visit.page.keyboard.press("Tab")
        names.append(
            visit.page.evaluate(
                """() => {
                    const now = document.activeElement;
                    const outline = getComputedStyle(
                        now.type === "radio" ? now.nextElementSibling : now
                    ).outlineStyle;
                    return [now.id || now.name || now.className, outline];
                }"""
            )
        )
    reached, outlines = zip(*names)
    order = (
        "show block head from pointer opacity compare image-0 stage distance"
    )
    assert " ".join(reached).startswith(order)
    assert set(outlines[:10]) == {"solid"} or "auto" in outlines


def test_blocks_and_heads_are_chosen(visit):
    visit.stage().focus()
    visit.press("ArrowDown")
    visit.slide("block", 2)
    visit.select("#head", "2")
    expect(visit.caption()).to_have_text("Attention in block 2, head 2")
    cell = 1 * GRID[1] + 2
    check_view(visit, attention(INSPECTION, 0, 1, 1, cell), cell)
    visit.select("#head", "Mean of all")
    expect(visit.caption()).to_contain_text("mean of the heads")
    check_view(visit, attention(INSPECTION, 0, 1, None, cell), cell)


def test_rollout_and_relevance_are_chosen(visit):
    visit.stage().focus()
    visit.press("ArrowDown")
    visit.choose("show", "rollout")
    expect(visit.caption()).to_have_text("Rollout through all 3 blocks")
    assert not visit.page.locator("#block").is_visible()
    check_view(visit, INSPECTION.rollouts[0, 7], 6)
    visit.choose("show", "relevance")
    for rank, index in enumerate(INSPECTION.top_classes[0]):
        visit.select("#rank", str(rank))
        expect(visit.caption()).to_have_text(f"Relevance for class {index}")
        check_view(visit, INSPECTION.relevances[0, rank, 7], 6)
    # It has no unit.
    assert "%" not in visit.reading().inner_text()


def test_the_overlay_fades(visit):
    def opacity():
        settle(visit.page)
        return (
            visit.stage()
            .locator(".heat")
            .evaluate("canvas => getComputedStyle(canvas).opacity")
        )

    assert opacity() == "0.65"
    visit.slide("opacity", 20)
    expect(visit.page.locator("#opacity-value")).to_have_text("20 %")
    assert opacity() == "0.2"


def test_the_heat_lies_on_the_image(visit):
    photo, heat = (
        visit.stage().locator(kind).bounding_box()
        for kind in (".photo", ".heat")
    )
    assert photo == pytest.approx(heat, abs=0.5)
    size = (
        visit.stage()
        .locator(".photo")
        .evaluate(
            """async (image) => {
                await image.decode();
                return [image.naturalWidth, image.naturalHeight];
            }"""
        )
    )
    assert size == [32, 24]
    assert photo["width"] / photo["height"] == pytest.approx(4 / 3, rel=0.01)


def test_predictions_have_bars(visit):
    settle(visit.page)
    lines = visit.panel().locator(".predictions li").all()
    order = np.argsort(-INSPECTION.probabilities[0])[:5]
    assert len(lines) == 5
    for line, index in zip(lines, order):
        name, value = line.locator("span").all_inner_texts()
        share = INSPECTION.probabilities[0, index]
        assert name == f"class {index}"
        np.testing.assert_allclose(number_in(value), share, rtol=0.006)
        bar, fill = (
            line.locator(kind).bounding_box()["width"] for kind in (".bar", "i")
        )
        np.testing.assert_allclose(fill / bar, share, atol=0.01)


def test_distances_are_plotted_and_choose_heads(visit):
    marks = visit.page.locator("#distance circle").all()
    ys = np.sort([float(mark.get_attribute("cy")) for mark in marks])
    # Higher is farther, on a straight scale.
    distances = np.sort(INSPECTION.distances.ravel())[::-1]
    assert len(ys) == 6
    slope, offset = np.polyfit(distances, ys, 1)
    np.testing.assert_allclose(slope * distances + offset, ys, atol=0.1)
    expect(visit.page.locator("#distance-reading")).to_contain_text(
        "on average"
    )
    axis = visit.page.locator("#distance text[text-anchor=middle]")
    assert axis.all_text_contents()[:-1] == ["1", "2", "3"]
    marks[0].click()
    visit.wait()
    expect(visit.caption()).to_contain_text("Attention in block 1, head 1")
    (chosen,) = visit.page.locator("#distance .chosen").all()
    assert float(chosen.get_attribute("cy")) in ys
    text = visit.page.locator("#distance-reading").inner_text()
    pixels = float(re.search(r"head 1: ([\d.]+) pixels", text)[1])
    np.testing.assert_allclose(pixels, INSPECTION.distances[0, 0], atol=0.51)
    visit.page.locator("#distance").focus()
    visit.press("ArrowRight")
    expect(visit.caption()).to_contain_text("Attention in block 2, head 1")
    farther = int(np.argmax(INSPECTION.distances[1]))
    visit.press("ArrowUp")
    expect(visit.caption()).to_contain_text(f"head {farther + 1}")
    visit.press("ArrowDown")
    expect(visit.caption()).to_contain_text(f"head {2 - farther}")


def test_filters_and_their_shares_are_shown(visit):
    images = visit.page.locator("#filters img").all()
    assert [image.get_attribute("alt") for image in images] == [
        "Filter 1: 50\xa0%",
        "Filter 2: 20\xa0%",
        "Filter 3: 10\xa0%",
        "Filter 4: 5\xa0%",
    ]
    width = images[0].evaluate(
        "async (image) => { await image.decode(); return image.naturalWidth; }"
    )
    assert width == 8


def test_norms_and_artefacts_are_shown(visit):
    norms = INSPECTION.token_norms[2, 0, 1:].reshape(GRID)
    expected = (norms - norms.min()) / np.ptp(norms)
    text = visit.panel().locator(".about-norms")
    expect(text).to_contain_text("(1); these tokens may store information")
    expect(text).to_contain_text("row 3, column 3")
    places = viridis_places(visit.colours(".norms"))
    np.testing.assert_allclose(places, expected, atol=0.03)
    visit.slide("block", 1)
    expect(text).to_contain_text("No norm exceeds three times")


def test_similarity_is_that_of_the_chosen_patch(visit):
    visit.hover(0, 3, GRID)
    text = visit.panel().locator(".about-similarity")
    expect(text).to_contain_text("row 1, column 4")
    similarity = INSPECTION.similarity[0, 3]
    low = similarity.min()
    places = viridis_places(visit.colours(".similarity"))
    expected = (similarity - low) / (1 - low)
    legend = visit.panel().locator(".similarity + .legend .low").inner_text()
    assert float(legend) == pytest.approx(low, abs=0.01)
    np.testing.assert_allclose(places, expected, atol=0.03)


def test_two_images_are_compared(visit):
    visit.switch("compare", True)
    expect(visit.panel(1)).to_be_visible()
    visit.hover(2, 1, GRID, panel=1)
    expect(visit.reading(0)).to_contain_text("Seen from row 3, column 2:")
    expect(visit.reading(1)).to_contain_text("Seen from row 3, column 2:")
    rows = [attention(INSPECTION, i, 2, None, 9) for i in range(2)]
    largest = [np.delete(row[1:], 9).max() for row in rows]
    assert largest[0] != pytest.approx(largest[1], rel=0.05)
    for i in range(2):
        check_view(visit, rows[i], 9, panel=i, largest=max(largest))
    visit.switch("same", False)
    visit.hover(2, 1, GRID)
    for i in range(2):
        check_view(visit, rows[i], 9, panel=i, largest=largest[i])
    visit.select("#image-1", "photo 1.jpg")
    visit.hover(0, 1, GRID)
    expect(visit.reading(1)).to_contain_text("Seen from row 1, column 2:")
    check_view(visit, attention(INSPECTION, 0, 2, None, 1), 1, panel=1)
    visit.switch("compare", False)
    expect(visit.panel(1)).to_be_hidden()
    expect(visit.page.locator("#same")).to_be_hidden()


def test_a_register_is_no_class_token(tab, tmp_path):
    registers = make_inspection(
        num_prefix_tokens=2, num_registers=2, reads_patches=True
    )
    path = tmp_path / "report.html"
    write_page([registers], path)
    visit = tab.go(path)
    norms = visit.panel(0).locator(".about-norms")
    expect(visit.reading()).to_contain_text("Seen from all patches")
    expect(norms).to_contain_text("Norm of each patch token")
    for words in (visit.reading(), norms):
        expect(words).not_to_contain_text("class token", ignore_case=True)
    token = visit.page.locator('[name="from"][value="token"]')
    expect(token).to_be_hidden()


def test_models_of_different_grids_are_compared(tab, tmp_path):
    other = make_inspection(
        (6, 2),
        layers=2,
        heads=4,
        num_prefix_tokens=0,
        reads_patches=True,
        model_name="another model",
        similarity=None,
        filters=None,
        **HEADLESS,
        seed=3,
    )
    path = tmp_path / "report.html"
    write_page([INSPECTION, other], path)
    visit = tab.go(path, "#same=0")
    # Two models stand side by side at once.
    expect(visit.caption(1)).to_contain_text("block 2 (last)")
    pooled = other.maps[1, 0].astype("float32").mean(axis=(0, 1))
    check_view(visit, pooled, panel=1, prefix=0, grid_size=(6, 2))
    np.testing.assert_allclose(
        pooled.reshape(6, 2),
        to_grid(
            other.maps[1, 0].astype("float32").mean(axis=0)[None],
            (6, 2),
            0,
            tokens=(),
        )[0],
        rtol=1e-5,
    )
    # Row 2 of 3, column 4 of 4 has its middle in row 4 of 6, column 2 of 2.
    visit.hover(1, 3, GRID)
    expect(visit.reading(1)).to_contain_text("Seen from row 4, column 2:")
    check_view(visit, attention(INSPECTION, 0, 2, None, 7), 7)
    row = attention(other, 0, 1, None, 7)
    check_view(visit, row, 7, panel=1, prefix=0, grid_size=(6, 2))
    assert len(visit.page.locator("#distance circle").all()) == 6
    assert len(visit.page.locator("#distance rect.second").all()) == 8
    about = visit.panel(1).locator(".about-similarity")
    expect(about).to_contain_text("no position embedding")
    visit.choose("show", "relevance")
    expect(visit.panel(1).locator("figcaption .notice")).to_contain_text(
        "no head"
    )


def test_a_class_token_beside_pooled_patches_can_be_asked(tab, tmp_path):
    inspection = make_inspection(GRID, reads_patches=True)
    write_page(inspection, tmp_path / "report.html")
    visit = tab.go(tmp_path / "report.html")
    maps = inspection.maps[2, 0].astype("float32").mean(axis=0)
    check_view(visit, maps[1:].mean(axis=0))
    visit.choose("from", "token")
    expect(visit.reading()).to_contain_text("Seen from the class token:")
    check_view(visit, maps[0])


def test_the_address_keeps_the_view(page_path, visit):
    visit.click(2, 3, GRID)
    visit.slide("block", 1)
    visit.select("#head", "2")
    visit.switch("compare", True)
    visit.select("#image-0", "photo 2.jpg")
    visit.slide("opacity", 40)
    expect(visit.page.locator("#address")).to_be_visible()
    visit.page.wait_for_url(re.compile(r"overlay=40.*compare=1.*images=2.2"))
    fragment = "#" + visit.page.url.split("#")[1]
    assert "block=1&head=2" in fragment
    again = visit.go(page_path, fragment)
    expect(again.caption(1)).to_have_text("Attention in block 1, head 2")
    check_view(again, attention(INSPECTION, 1, 0, 1, 11), 11)
    photo = again.panel(0).locator("select.image")
    assert photo.input_value() == "1"
    expect(again.reading(1)).to_contain_text("Seen from row 3, column 4:")
    expect(again.page.locator("#opacity-value")).to_have_text("40 %")


@pytest.mark.parametrize(
    "fragment",
    [
        "#block=99&head=-3&at=0.0&show=<b>&images=7.x&overlay=1e9",
        "#%E0%A4%A",
        "#at",
    ],
)
def test_an_address_of_nonsense_does_no_harm(tab, page_path, fragment):
    visit = tab.go(page_path, fragment)
    expect(visit.caption()).to_contain_text("Attention in block 3 (last),")


def test_a_page_with_the_least_says_so(tab, tmp_path):
    page = _render([INSPECTION], DETAILS[-1])
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    visit = tab.go(tmp_path / "report.html", "#block=2&head=2")
    about = visit.page.locator("#left-out")
    expect(about).to_contain_text(
        "only for the tokens that the head of the model reads"
    )
    expect(visit.caption()).to_contain_text("head 2")
    check_view(visit, INSPECTION.maps[1, 0, 1].astype("float32")[0])
    visit.stage().focus()
    visit.press("ArrowDown")
    notice = visit.panel().locator("figcaption .notice")
    expect(notice).to_contain_text("only for the tokens that the head reads")
    expect(visit.stage().locator(".heat")).to_be_hidden()
    visit.choose("show", "rollout")
    expect(notice).to_be_hidden()
    check_view(visit, INSPECTION.rollouts[0, 7], 6)
    visit.choose("show", "relevance")
    check_view(visit, INSPECTION.relevances[0, 0, 7], 6)


def test_names_are_shown_as_they_are(tab, tmp_path):
    inspection = make_inspection(
        GRID,
        image_names=(NASTY, "b"),
        model_name=NASTY,
        class_names=tuple(NASTY + str(i) for i in range(6)),
    )
    write_page(inspection, tmp_path / "a.html")
    visit = tab.go(tmp_path / "a.html")
    for selector in (".predictions li span", "select.image option"):
        name = visit.panel().locator(selector).first.text_content()
        assert name.startswith(NASTY)


def phone(width):
    viewport = {"width": width, "height": 740}
    return {"viewport": viewport, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_it_all(browser, page_path, width):
    visit = Visit(browser, **phone(width)).go(page_path, "#compare=1&same=0")
    wide = visit.page.evaluate(
        """() => [
            document.documentElement.scrollWidth,
            ...[...document.querySelectorAll("body *")]
                .filter((e) => !e.closest(".marks, .heat, .unseen"))
                .map((e) => e.getBoundingClientRect().right),
        ]"""
    )
    assert max(wide) <= width
    visit.stage().tap(position=visit.centre_of(1, 0, GRID))
    visit.wait()
    expect(visit.reading()).to_contain_text("Seen from row 2, column 1:")
    check_view(visit, attention(INSPECTION, 0, 2, None, 4), 4)
    # Fingers need room.
    for control in visit.page.locator("#controls :is(select, label)").all():
        if control.is_visible() and control.inner_text():
            assert control.bounding_box()["height"] >= 18
    # The two images follow each other; what is said of them is below.
    tops = [
        visit.panel(index).locator(kind).bounding_box()["y"]
        for kind in (".stage", ".details")
        for index in (0, 1)
    ]
    assert tops == sorted(tops)
    assert tops[1] - tops[0] < 740
    visit.check_quiet()
    visit.context.close()


@pytest.mark.parametrize(
    "fragment", ["#compare=1", "#show=relevance&from=patch"]
)
def test_axe_finds_nothing(tab, page_path, fragment):
    from axe_playwright_python.sync_playwright import Axe

    visit = tab.go(page_path, fragment)
    settle(visit.page)
    everything = Axe().run(visit.page).response
    assert len(everything["passes"]) > 20
    visit.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    settle(visit.page)
    # Of all rules only this one asks for colours.
    colours = (
        Axe().run(visit.page, options={"runOnly": ["color-contrast"]}).response
    )
    assert len(colours["passes"]) == 1
    found = {
        v["id"]: [n["html"] for n in v["nodes"]]
        for results in (everything, colours)
        for v in results["violations"]
    }
    assert found == {}


def test_a_frame_in_a_notebook_works(tab, tmp_path):
    path = tmp_path / "notebook.html"
    start = '<!doctype html><html data-state="drawn"><meta charset="utf-8">'
    path.write_text(start + INSPECTION._repr_html_(), encoding="utf-8")
    visit = tab.go(path)
    inside = visit.page.frame_locator("iframe")
    stage = inside.locator(".stage").first
    stage.focus()
    stage.press("ArrowDown")
    expect(inside.locator("figcaption .reading").first).to_contain_text(
        "Seen from row 2, column 3:"
    )
    expect(inside.locator("#address")).to_be_hidden()


@pytest.mark.slow
def test_a_page_of_the_base_model_is_usable_soon(tab, tmp_path):
    # Nearly even and of no pattern: as random weights make them, the hardest
    # to pack.
    inspection = make_inspection(
        (14, 14), images=4, layers=12, heads=12, sharpness=0.6
    )
    path = tmp_path / "report.html"
    write_page(inspection, path)
    assert path.stat().st_size <= 15_000_000
    visit = tab.go(path)
    expect(visit.page.locator("#left-out")).to_be_empty()
    ready = visit.page.evaluate("performance.now()")
    assert ready < 10_000  # 0.5 s on an idle machine.
    visit.hover(4, 7, (14, 14))
    expect(visit.reading()).to_contain_text("Seen from row 5, column 8:")
