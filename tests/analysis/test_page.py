import base64
import dataclasses
import html.parser
import io
import json
import re
import zlib

import numpy as np
import pytest

from keras_vit.analysis import page, render_page, write_page
from keras_vit.analysis.page import DETAILS, encode_png, pack_rows
from tests.analysis.inspections import HEADLESS, make_inspection


def unpack_rows(data, shape, prefix, levels):
    """Return the rows (M, Q, T) that `pack_rows` packed, as the page does."""
    m, q, t = shape
    data = zlib.decompress(data)
    num_own = m * q if q == t else 0
    sizes = [m * q, num_own, m * q * prefix]
    numbers = np.frombuffer(data, "<f4", sum(sizes))
    scale, own, first = np.split(numbers, np.cumsum(sizes)[:-1])
    codes = np.frombuffer(data, "u1", offset=numbers.nbytes)
    roots = codes.reshape(m, q, -1) / np.float32(levels)
    patches = roots**2 * scale.reshape(m, q, 1)
    rows = np.concatenate([first.reshape(m, q, -1), patches], axis=-1)
    if num_own:
        rows[:, np.arange(t), np.arange(t)] = own.reshape(m, q)
    return rows


def error_bound(rows, prefix, levels):
    """Return how far a packed number may be off: half a level of its root."""
    rows = np.asarray(rows, "float64")
    others = rows.copy()
    others[..., :prefix] = 0
    if rows.shape[1] == rows.shape[2]:
        tokens = np.arange(rows.shape[1])
        others[:, tokens, tokens] = 0
    scale = others.max(axis=-1, keepdims=True)
    roots = np.sqrt(others / np.where(scale > 0, scale, 1))
    return scale * (roots / levels + 1 / (4 * levels**2))


@pytest.mark.parametrize("levels", [255, 15])
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("shape", [(2, 13, 13), (3, 1, 13), (1, 1, 1)])
def test_packed_rows_come_back_within_the_bound(shape, prefix, levels):
    rows = np.random.default_rng(0).standard_normal(shape) * 3
    rows = np.exp(rows) / np.exp(rows).sum(axis=-1, keepdims=True)
    rows[0] = 0
    packed = pack_rows(rows, prefix, levels)
    again = unpack_rows(packed, shape, prefix, levels)
    assert again.shape == shape
    error = np.abs(again - rows)
    assert (error <= error_bound(rows, prefix, levels) + 1e-7).all()
    assert not again[0].any()


def test_what_is_stored_as_it_is_leaves_the_levels_to_the_rest():
    rows = np.full((1, 9, 9), 1e-6, "float32")
    rows += np.eye(9, dtype="float32")
    rows[:, :, 0] = 0.3
    again = unpack_rows(pack_rows(rows, 1, 15), rows.shape, 1, 15)
    np.testing.assert_allclose(again, rows, rtol=1e-6)


@pytest.mark.parametrize("wrong", [-1e-3, np.nan, np.inf])
def test_numbers_that_cannot_be_packed_are_an_error(wrong):
    rows = np.full((1, 4, 4), 0.25)
    rows[0, 2, 1] = wrong
    with pytest.raises(ValueError, match="`rows`"):
        pack_rows(rows, 1, 255)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_is_read_by_others(channels):
    image_file = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(
        0, 256, (7, 5, channels), dtype="uint8"
    )
    with image_file.open(io.BytesIO(encode_png(pixels))) as image:
        again = np.asarray(image).reshape(pixels.shape)
    np.testing.assert_array_equal(again, pixels)


class Elements(html.parser.HTMLParser):
    """The text of the elements of a page that have an id."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.open, self.attributes = {}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(dict(attrs).get("id") or tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        while self.open and self.open.pop() not in (tag, *self.texts):
            pass

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], "")
            self.texts[self.open[-1]] += data


def content_of(text):
    """Return the JSON content of a page."""
    return json.loads(re.search(r'id="content">(.*?)</script>', text, re.S)[1])


def packet_of(text, number):
    """Return the bytes of an element of a page."""
    pattern = rf'id="packet-{number}">([^<]*)</script>'
    return base64.b64decode(re.search(pattern, text)[1])


def rows_of(text, found, prefix=1):
    """Return the decoded rows of a page."""
    data = packet_of(text, found["packet"])
    levels = content_of(text)["levels"]
    return unpack_rows(data, tuple(found["shape"]), prefix, levels)


def test_a_page_holds_the_numbers_of_an_inspection():
    inspection = make_inspection()
    text = render_page([inspection])
    content = content_of(text)
    assert content["levels"] == 255
    assert content["left_out"] == ""
    (model,) = content["models"]
    assert model["grid"] == [3, 4]
    assert [len(image["attention"]) for image in model["images"]] == [3, 3]
    for i, image in enumerate(model["images"]):
        for block, found in enumerate(image["attention"]):
            rows = inspection.maps[block, i].astype("float32")
            error = np.abs(rows_of(text, found["heads"]) - rows)
            assert (error <= error_bound(rows, 1, 255) + 1e-7).all()
        for name, rows in (
            ("rollout", inspection.rollouts[i : i + 1]),
            ("relevance", inspection.relevances[i]),
        ):
            error = np.abs(rows_of(text, image[name]) - rows)
            assert (error <= error_bound(rows, 1, 255) + 1e-6).all()
        probabilities = [p["probability"] for p in image["predictions"]]
        np.testing.assert_allclose(
            probabilities, np.sort(inspection.probabilities[i])[:0:-1]
        )
    assert model["images"][0]["artefacts"] == [[], [], [10]]
    packed = packet_of(text, model["similarity"]["packet"])
    codes = np.frombuffer(zlib.decompress(packed), "u1")
    error = np.abs(codes / 127 - 1 - inspection.similarity.ravel())
    assert error.max() <= 1 / 254 + 1e-6
    packed = packet_of(text, model["images"][1]["norms"])
    norms = np.frombuffer(zlib.decompress(packed), "<f4")
    np.testing.assert_array_equal(norms, inspection.token_norms[:, 1].ravel())


def test_a_page_asks_nobody_and_runs_its_own_script_only():
    text = render_page([make_inspection()])
    attributes = Elements(text).attributes
    assert not [value for name, value in attributes if name in ("src", "href")]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)", text)
    (policy,) = [
        value for _, value in attributes if value and "default-src" in value
    ]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


NASTY = "</script><script>alert(1)</script><!-- \"'&amp; 🦆 \u2028 {{packets}}"


def test_names_stay_text():
    inspection = make_inspection(
        model_name=NASTY,
        image_names=(NASTY, "caf\udce9.jpg"),
        class_names=(NASTY, *"bcdef"),
    )
    text = render_page([inspection])
    assert text.count("<script") == render_page([make_inspection()]).count(
        "<script"
    )
    content = content_of(text)
    assert content["models"][0]["name"] == NASTY
    names = [image["name"] for image in content["models"][0]["images"]]
    assert names == [NASTY, "caf\udce9.jpg"]
    text.encode("utf-8")


def test_a_page_holds_as_much_as_there_is_room_for():
    inspection = make_inspection(
        grid_size=(7, 7), layers=4, heads=4, images=1, reads_patches=True
    )
    pages = [page._render([inspection], detail) for detail in DETAILS]
    sizes = [len(text.encode()) for text in pages]
    assert sizes == sorted(sizes, reverse=True)
    for text, size, detail in zip(pages, sizes, DETAILS):
        assert render_page([inspection], max_bytes=size) == text
        content = content_of(text)
        assert content["levels"] == detail.levels
        assert bool(content["left_out"]) != detail.has_all_tokens
        assert f"{100 / detail.levels:.1f} %" in content["precision"]
        (image,) = content["models"][0]["images"]
        check_rows(text, image["rollout"], inspection.rollouts, detail)
        check_rows(text, image["relevance"], inspection.relevances[0], detail)
        for found, rows in zip(image["attention"], inspection.maps[:, 0]):
            rows = rows.astype("float32")
            if not detail.has_all_tokens:
                rows = rows[:, 1:].mean(axis=1, keepdims=True)
            [packed] = found.values()
            check_rows(text, packed, rows, detail)


def check_rows(text, found, rows, detail):
    bound = error_bound(rows, 1, detail.levels) + 1e-6
    assert (np.abs(rows_of(text, found) - rows) <= bound).all()


def test_maps_of_a_large_model_are_not_packed_for_nothing(monkeypatch):
    """Packing takes minutes; an estimate shows that they would not fit."""
    tried = []
    render = page._render
    monkeypatch.setattr(
        page, "_render", lambda *a: tried.append(a[1]) or render(*a)
    )
    inspection = make_inspection(
        grid_size=(8, 8), layers=8, heads=8, images=4, classes=3
    )
    render_page([inspection], max_bytes=500_000)
    assert tried == [DETAILS[-1]]


@pytest.mark.parametrize("detail", DETAILS)
def test_the_guess_is_near(detail):
    inspection = make_inspection(grid_size=(7, 7), layers=6, heads=6)
    content = page.Content(detail)
    for i in range(2):
        for maps in inspection.maps[:, i]:
            content.describe_block(inspection, maps)
    size = sum(map(len, content.packets))
    guess = page.guess_size(inspection, detail)
    assert 0.6 < guess / size < 1.5


def test_too_little_room_is_an_error_that_says_how_much_is_needed():
    inspection = make_inspection()
    with pytest.raises(ValueError, match="`max_bytes`") as e:
        render_page([inspection], max_bytes=1000)
    needed = int(re.search(r"least ([\d,]+)", str(e.value))[1].replace(",", ""))
    assert len(render_page([inspection], max_bytes=needed).encode()) <= needed
    with pytest.raises(ValueError, match="`max_bytes`"):
        render_page([inspection], max_bytes=needed - 1)


def test_inspections_must_be_of_the_same_images():
    with pytest.raises(ValueError, match="`inspections`.*2 inspections"):
        render_page([make_inspection(), make_inspection(images=3)])
    with pytest.raises(ValueError, match="`inspections`"):
        render_page([])


def test_two_models_of_different_grids_share_a_page():
    a = make_inspection()
    b = make_inspection(
        grid_size=(2, 2), num_prefix_tokens=0, reads_patches=True, layers=2
    )
    text = render_page([a, b])
    models = content_of(text)["models"]
    assert [model["grid"] for model in models] == [[3, 4], [2, 2]]
    found = models[1]["images"][1]["attention"][1]["heads"]
    rows = b.maps[1, 1].astype("float32")
    error = np.abs(rows_of(text, found, prefix=0) - rows)
    assert (error <= error_bound(rows, 0, 255) + 1e-7).all()


def test_what_a_model_does_not_have_is_left_out():
    inspection = make_inspection(similarity=None, filters=None, **HEADLESS)
    (model,) = content_of(render_page(inspection))["models"]
    assert model["similarity"] is None
    assert model["filters"] is None
    assert model["images"][0]["predictions"] is None
    assert model["images"][0]["relevance"] is None


def test_a_register_is_told_from_a_class_token():
    tokens = {"num_prefix_tokens": 2, "reads_patches": True}
    inspections = [make_inspection(num_registers=n, **tokens) for n in (1, 2)]
    models = content_of(render_page(inspections))["models"]
    assert [model["has_class_token"] for model in models] == [True, False]


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_images_and_filters_of_other_channels_are_shown(channels):
    inspection = make_inspection(channels=channels)
    filters = inspection.filters._replace(
        filters=np.ones((4, 8, 8, 5), "float32")
    )
    inspection = dataclasses.replace(inspection, filters=filters)
    (model,) = content_of(render_page(inspection))["models"]
    without = make_inspection(channels=channels, filters=None)
    (other,) = content_of(render_page(without))["models"]
    assert len(model["images"]) == len(other["images"]) > 0
    assert model["filters"] is not None and other["filters"] is None


def test_a_page_is_written_as_it_is_rendered(tmp_path):
    path = tmp_path / "made" / "report.html"
    write_page([make_inspection()], path)
    assert path.read_bytes() == render_page([make_inspection()]).encode()


def test_a_notebook_gets_a_frame_with_the_page(monkeypatch):
    inspection = make_inspection()
    frame = inspection._repr_html_()
    attributes = dict(Elements(frame).attributes)
    assert attributes["srcdoc"] == render_page(inspection)
    assert attributes["sandbox"] == "allow-scripts"
    monkeypatch.setattr(page, "FRAME_BYTES", 1000)
    frame = inspection._repr_html_()
    least = page._render([inspection], DETAILS[-1])
    assert dict(Elements(frame).attributes)["srcdoc"] == least
