"""The map of pictures, as data and as a person uses it in Chromium."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from keras_vit.analysis.map_page import COLUMNS, TILE_SIDE, write_map
from tests.analysis.browsing import Visit, open_browser, settle
from tests.pictures import encode
from tests.tiny import noise

NASTY = "</script><b>{{title}}"
RED = encode(np.full((10, 20, 3), (250, 0, 0), "uint8"))
BLUE = encode(np.full((64, 64, 3), (0, 0, 250), "uint8"), "JPEG")


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return the page of five pictures: in the corners and the middle."""
    path = tmp_path_factory.mktemp("map") / "new/map.html"
    points = [[0, 0], [4, 0], [0, 4], [4, 4], [2, 2]]
    names = ["low.png", "right.png", "high.png", NASTY, "middle.png"]
    labels = ["a", "b", "a", None, NASTY]
    write_map(path, points, names, labels, {0: RED, 3: BLUE}, summary="Five")
    return path


@pytest.fixture(scope="module")
def shared_tab(browser):
    return Visit(browser)


@pytest.fixture
def visit(shared_tab, path):
    yield shared_tab.go(path)
    shared_tab.check_quiet()


def place(visit, x, y):
    """Return where a point of the plane is on the page."""
    box = visit.page.locator("#map").bounding_box()
    side = 0.94 * min(box["width"], box["height"])
    return (
        box["x"] + box["width"] / 2 + (x - 2) / 4 * side,
        box["y"] + box["height"] / 2 - (y - 2) / 4 * side,
    )


def selected(visit):
    return visit.page.locator("#names").input_value().split("\n")


def test_hovering_shows_picture_name_and_label(visit):
    for point, name, colour in (
        ((0, 0), "low.png\na", "red"),
        ((4, 4), f"{NASTY}\n", "blue"),
    ):
        visit.page.mouse.move(*place(visit, *point))
        visit.page.wait_for_selector("#tip:not([hidden])")
        tip = visit.page.locator("#tip figcaption")
        assert tip.text_content() == name
        visit.page.wait_for_function(
            """(channel) => {
                const canvas = document.getElementById("picture");
                const { width, height } = canvas;
                // Of the page's own one a second reading warns.
                const copy = new OffscreenCanvas(width, height).getContext(
                    "2d", { willReadFrequently: true }
                );
                copy.drawImage(canvas, 0, 0);
                const { data } = copy.getImageData(width / 2, height / 2, 1, 1);
                return data[channel] > 200 && data[1] < 60;
            }""",
            arg={"red": 0, "blue": 2}[colour],
        )
    visit.page.mouse.move(*place(visit, 2, 2))
    visit.wait()
    assert visit.page.locator("#picture").is_hidden()


def test_a_box_selects_and_lists_files(visit):
    (left, top), (right, bottom) = (
        place(visit, -0.1, 4.1),
        place(visit, 3, -0.1),
    )
    visit.page.keyboard.down("Shift")
    visit.page.mouse.move(left, top)
    visit.page.mouse.down()
    visit.page.mouse.move(right, bottom)
    visit.page.mouse.up()
    visit.page.keyboard.up("Shift")
    visit.wait()
    assert selected(visit) == ["low.png", "high.png", "middle.png"]
    assert visit.page.locator("#count").text_content() == "3 pictures"


def test_hidden_labels_are_not_selected(visit):
    buttons = visit.page.locator("#labels button")
    assert buttons.all_text_contents() == [
        f"{NASTY} (1)",
        "a (2)",
        "b (1)",
        "no label (1)",
    ]
    buttons.nth(1).click()
    visit.page.locator("#select").click()
    visit.page.mouse.move(*place(visit, -0.1, 4.1))
    visit.page.mouse.down()
    visit.page.mouse.move(*place(visit, 4.1, -0.1))
    visit.page.mouse.up()
    visit.wait()
    assert selected(visit) == ["right.png", NASTY, "middle.png"]


def test_zoom_keeps_what_is_below_the_pointer(visit):
    x, y = place(visit, 0, 0)
    visit.page.mouse.move(x, y)
    visit.page.mouse.wheel(0, -800)
    visit.wait()
    visit.page.mouse.move(x + 1, y)
    visit.page.wait_for_selector("#tip:not([hidden])")
    text = visit.page.locator("#tip figcaption").text_content
    assert text() == "low.png\na"
    # Dragging moves it along.
    visit.page.mouse.down()
    visit.page.mouse.move(x + 101, y - 50, steps=4)
    visit.page.mouse.up()
    visit.page.mouse.move(x + 102, y - 50)
    visit.page.wait_for_selector("#tip:not([hidden])")
    assert text() == "low.png\na"
    visit.page.locator("#whole").click()
    visit.page.mouse.move(*place(visit, 4, 0))
    visit.page.wait_for_function(
        """() => document.querySelector("#tip figcaption")
            .textContent === "right.png\\nb" """
    )


def test_axe_finds_nothing(visit):
    from axe_playwright_python.sync_playwright import Axe

    visit.page.mouse.move(*place(visit, 0, 0))
    visit.page.wait_for_selector("#tip:not([hidden])")
    visit.page.locator("#select").click()
    visit.page.locator("#labels button").first.click()
    for scheme in ("dark", "light"):
        visit.page.emulate_media(color_scheme=scheme)
        settle(visit.page)
        found = Axe().run(visit.page).response
        assert len(found["passes"]) > 15
        assert not found["violations"], found["violations"]


def test_it_fits_a_phone(browser, path):
    visit = Visit(browser, viewport={"width": 390, "height": 800}).go(path)
    width = "document.documentElement.scrollWidth"
    assert visit.page.evaluate(width) == 390
    visit.check_quiet()


def test_twenty_thousand_points_stay_smooth(browser, tmp_path):
    points = noise(20_000, 2)
    names = [f"{i:05d}.jpg" for i in range(20_000)]
    labels = [str(i % 10) for i in range(20_000)]
    write_map(tmp_path / "map.html", points, names, labels, {})
    visit = Visit(browser).go(tmp_path / "map.html")
    times = visit.page.evaluate(
        """async () => {
            const canvas = document.getElementById("map");
            const frame = () => new Promise(requestAnimationFrame);
            const times = [];
            for (let i = 0; i < 20; i++) {
                canvas.dispatchEvent(new WheelEvent("wheel", {
                    deltaY: i % 2 ? -40 : 40, clientX: 500, clientY: 400,
                    cancelable: true,
                }));
                const start = performance.now();
                await frame();
                await frame();
                times.push((performance.now() - start) / 2);
            }
            return times;
        }"""
    )
    print(f"{np.median(times):.1f} ms a frame")
    # It takes a tenth of this on a machine that does nothing else.
    assert np.median(times) < 200


def read_content(path):
    page = path.read_text()
    found = re.search(r'id="content">(.*?)</script>', page, re.S)[1]
    return json.loads(found)


def test_both_axes_have_one_scale_and_y_points_upwards(tmp_path):
    """Places are fractions of 65535, from the top left of a square."""
    path = tmp_path / "map.html"
    write_map(path, [[0, 0], [4, 0], [0, 2]], "abc", [None] * 3, {})
    data = base64.b64decode(read_content(path)["places"])
    places = np.frombuffer(data, "<u2").reshape(3, 2) / 65535
    expected = [[0, 0.75], [1, 0.75], [0, 0.25]]
    np.testing.assert_allclose(places, expected, atol=1e-4)


def test_more_pictures_are_on_several_sheets(tmp_path):
    count = COLUMNS**2 + 2
    names = [str(i) for i in range(count + 1)]
    pictures = {i + 1: RED if i < count - 1 else BLUE for i in range(count)}
    write_map(
        tmp_path / "map.html", noise(count + 1, 2), names, names, pictures
    )
    content = read_content(tmp_path / "map.html")
    assert content["tiles"] == [-1, *range(count)]
    sheets = [
        Image.open(io.BytesIO(base64.b64decode(x.partition(",")[2])))
        for x in content["sheets"]
    ]
    side = COLUMNS * TILE_SIDE
    assert [sheet.size for sheet in sheets] == [(side, side), (side, TILE_SIDE)]
    middle = TILE_SIDE // 2
    last = sheets[1].getpixel((TILE_SIDE + middle, middle))
    assert last[2] > 200 and last[0] < 60


@pytest.mark.parametrize(
    "points, labels",
    [
        (np.zeros((2, 3)), ["a", "b"]),
        (np.array([[0, np.nan], [1, 1]]), ["a", "b"]),
        (np.zeros((2, 2)), ["a"]),
    ],
)
def test_other_points_are_refused(tmp_path, points, labels):
    with pytest.raises(ValueError, match="`points`|`labels`"):
        write_map(tmp_path / "map.html", points, ["x", "y"], labels, {})
