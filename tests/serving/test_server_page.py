"""The page of the server as a person uses it, in headless Chromium."""

import dataclasses
import io
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import decode_predictions
from keras_vit.analysis.colours import CLASS_COLOURS, NUMBER_COLOURS
from keras_vit.export import Serving, export_model
from keras_vit.export.formats.saved_model import decode_inputs
from keras_vit.known import KnownScore
from keras_vit.serving import connect
from keras_vit.serving.models import ServedModel, find_models
from keras_vit.serving.server import HEADERS
from tests.analysis.browsing import PATIENCE, open_browser
from tests.serving.made import NAMES, make_files
from tests.serving.running import run_server, serve_functions, spec

NASTY = '<img src=x onerror="document.title=1">'
IMAGES = {"image_bytes": spec("DT_STRING", -1)}
LABELS = {
    "labels": spec("DT_STRING", -1, 2),
    "probabilities": spec("DT_FLOAT", -1, 2),
}
MAPS = {
    "images": spec("DT_FLOAT", -1, 4, 6, 3),
    "rollout": spec("DT_FLOAT", -1, 2, 3),
}


def classify(image_bytes):
    labels = np.array([[NASTY.encode(), "dög".encode()]], object)
    return {"labels": labels, "probabilities": np.array([[0.75, 0.25]], "f4")}


def tag(image_bytes):
    """Seven labels, of which a bright photo has the sixth; a dark one none."""
    [content] = image_bytes
    is_bright = tf.io.decode_png(content).numpy().mean() > 127
    limits = np.full((1, 7), 0.9, "f4")
    limits[0, 5] = 0.25 if is_bright else 0.26
    return {
        "labels": np.array([[name.encode() for name in NAMES]], object),
        "probabilities": np.array([[0.8, 0.7, 0.6, 0.5, 0.4, 0.25, 0]], "f4"),
        "thresholds": limits,
    }


def know(image_bytes):
    """Bright photos are known."""
    [content] = image_bytes
    mean = tf.io.decode_png(content).numpy().mean()
    score = np.array([mean], "f4")
    return {**classify(image_bytes), "score": score, "is_known": score > 127}


def look(image_bytes):
    images = np.zeros((1, 4, 6, 3), "float32")
    images[..., 0] = 1
    rollout = np.arange(6, dtype="float32").reshape(1, 2, 3) / 15
    return {"images": images, "rollout": rollout}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    tensor = {"x": spec("DT_FLOAT", -1)}
    kinds = {
        "looks": {
            "serve_bytes": (IMAGES, LABELS, classify),
            "attention_bytes": (IMAGES, MAPS, look),
        },
        "only_classes": {"serve_bytes": (IMAGES, LABELS, classify)},
        "tags": {
            "serve_bytes": (
                IMAGES,
                {**LABELS, "thresholds": spec("DT_FLOAT", -1, 7)},
                tag,
            )
        },
        "knows": {
            "serve_bytes": (
                IMAGES,
                {
                    **LABELS,
                    "score": spec("DT_FLOAT", -1),
                    "is_known": spec("DT_BOOL", -1),
                },
                know,
            )
        },
        "plain": {"serving_default": (tensor, tensor, lambda x: {"x": x})},
    }
    models = {
        name: serve_functions(tmp_path_factory.mktemp(name), signatures, name)
        for name, signatures in kinds.items()
    }
    with run_server(models) as address:
        yield address


def test_headers_of_the_page(address):
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript")):
        status, headers, data = address.ask(path)
        assert status == 200 and data
        assert headers["content-type"].startswith(kind)
        assert headers.items() >= HEADERS.items()
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for path in ("/../serve.py", "/%2e%2e/serve.py", "/x", "/serve.py"):
        assert address.ask(path)[0] == 404


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser, address):
    """Return the page; at the end it has asked for nothing from elsewhere."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/")
    wait(page)
    yield page
    context.close()
    # Of an answer that is an error, the browser itself says so.
    assert not [text for text in said if "status of 400" not in text]
    outside = (str(address), "data:", "blob:")
    assert not [url for url in asked if not url.startswith(outside)]


def wait(page):
    page.wait_for_selector('html[data-state="ready"]')


def choose(page, content, name="photo.png"):
    file = {"name": name, "mimeType": "image/png", "buffer": content}
    page.set_input_files("#file", file)
    wait(page)


def classes(page):
    return page.locator("#classes tr").all_inner_texts()


def colour(page, canvas, x, y):
    return page.locator(f"#{canvas}").evaluate(
        """(canvas, [x, y]) => {
            // Of the page's own one a second reading warns.
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const options = { willReadFrequently: true };
            const context = copy.getContext("2d", options);
            context.drawImage(canvas, 0, 0);
            return [...context.getImageData(x, y, 1, 1).data];
        }""",
        [x, y],
    )


def test_a_photo_its_classes_and_where_the_model_looks(page):
    assert page.locator("#model option").all_inner_texts() == [
        "looks",
        "only_classes",
        "tags",
        "knows",
        "plain",
    ]
    assert page.locator("#version").inner_text() == "version 7"
    choose(page, make_files(1)[0])
    assert [row.split("\t")[0] for row in classes(page)] == [NASTY, "dög"]
    assert "75.0 %" in classes(page)[0]
    assert page.title() == "Try the model"  # The label was no markup.
    assert page.locator("#photo").evaluate("image => image.naturalWidth") == 4
    assert page.locator("#look").is_visible()
    assert colour(page, "seen", 5, 3) == [255, 0, 0, 255]
    assert colour(page, "heat", 0, 0) == [0, 0, 0, 215]  # Nothing from here,
    assert colour(page, "heat", 2, 1) == [0, 0, 0, 0]  # most from here.
    page.locator("#show").uncheck()
    assert page.locator("#heat").is_hidden()
    page.select_option("#model", "only_classes")
    page.locator("#result").wait_for(state="hidden")
    choose(page, make_files(1)[0])
    assert len(classes(page)) == 2 and page.locator("#look").is_hidden()


def test_several_labels_at_their_thresholds(page):
    dark, bright = (
        tf.io.encode_png(np.full((4, 4, 3), level, "uint8")).numpy()
        for level in (0, 255)
    )
    page.select_option("#model", "tags")
    wait(page)
    choose(page, bright)
    page.locator("#result").wait_for()
    assert classes(page) == ["fly\t 25.0 %"]
    assert page.locator("#note").is_hidden()
    choose(page, dark)
    page.locator("#note").get_by_text("No label reaches").wait_for()
    assert [row.split("\t")[0] for row in classes(page)] == [*NAMES[:5]]
    choose(page, bright)
    page.locator("#note").wait_for(state="hidden")
    assert len(classes(page)) == 1


def test_photos_of_other_things_are_unknown(page):
    page.select_option("#model", "knows")
    wait(page)
    for level in (0, 255, 0):
        photo = np.full((4, 4, 3), level, "uint8")
        choose(page, tf.io.encode_png(photo).numpy())
        page.locator("#result").wait_for()
        assert len(classes(page)) == 2
        note = page.locator("#note").inner_text()
        assert note.startswith("" if level else "Unknown: this does not")
        assert bool(note) == (not level)


def test_a_photo_waits_for_the_model(page):
    """People choose one while the page is loading."""
    held = []
    page.route("**/models.json", lambda route: held.append(route))
    page.reload()
    file = {"name": "a.png", "mimeType": "image/png"}
    page.set_input_files("#file", {**file, "buffer": make_files(1)[0]})
    assert page.locator("#message").inner_text() == ""
    held[0].continue_()
    page.locator("#classes tr").first.wait_for()
    assert len(classes(page)) == 2


def test_what_is_wrong_is_said(page):
    choose(page, b"no image")
    text = page.locator("#message").inner_text()
    assert text.startswith("Unknown image file format")
    assert page.locator("#result").is_hidden()
    choose(page, make_files(1)[0])
    assert not page.locator("#message").inner_text()
    page.select_option("#model", "plain")
    page.get_by_text("does not return the classes of image files").wait_for()


def test_the_camera(page):
    page.evaluate(
        """() => {
            const canvas = document.createElement("canvas");
            canvas.width = 32;
            canvas.height = 24;
            const context = canvas.getContext("2d");
            // A stream has a frame for each drawing.
            setInterval(() => context.fillRect(0, 0, 9, 9), 30);
            navigator.mediaDevices.getUserMedia = async () =>
                canvas.captureStream(30);
        }"""
    )
    page.locator("#camera").click()
    page.locator("#video").evaluate(
        """video => new Promise((done, fail) => {
            video.onloadeddata = done;
            if (video.readyState >= 2) done();
            setTimeout(fail, 9000, "no picture of the camera");
        })"""
    )
    page.locator("#shoot").click()
    page.locator("#result").wait_for()
    size = page.locator("#photo").evaluate(
        "image => image.decode().then(() => image.naturalWidth)"
    )
    assert size == 32 and len(classes(page)) == 2
    page.locator("#end").click()
    assert page.locator("#live").is_hidden()


def test_a_photo_that_is_dropped(page):
    page.evaluate(
        """bytes => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "x.png"));
            document.body.dispatchEvent(new DragEvent("drop", {
                bubbles: true, cancelable: true, dataTransfer: transfer,
            }));
        }""",
        [*make_files(1)[0]],
    )
    page.locator("#result").wait_for()
    assert len(classes(page)) == 2


WIDER = """() => [...document.querySelectorAll("body *")].filter(
    (x) => x.getBoundingClientRect().right > document.body.clientWidth
).map((x) => x.outerHTML)"""
LINES = """() => [...document.querySelectorAll("#classes td:last-child")].map(
    (cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell.lastChild);
        return range.getClientRects().length;
    }
)"""


@pytest.mark.parametrize("width", [320, 390])
def test_the_page_on_a_phone(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    page.locator("#model").evaluate(
        "([option]) => { option.label = 'm'.repeat(200); }"
    )
    photo = np.zeros((900, 1200, 3), "uint8")
    choose(page, tf.io.encode_png(photo).numpy())
    page.locator("#look").wait_for()
    assert page.evaluate(WIDER) == []
    assert page.evaluate(LINES) == [1, 1]  # No "%" on a line of its own.


def test_a_photo_that_the_browser_cannot_show(page):
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "TIFF")
    choose(page, stream.getvalue(), "photo.tif")
    page.locator("#photo").wait_for(state="hidden")
    assert len(classes(page)) == 2
    choose(page, make_files(1)[0])
    page.locator("#photo").wait_for()


def test_the_page_is_accessible(page):
    from axe_playwright_python.sync_playwright import Axe

    choose(page, make_files(1)[0])
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_tflite_files(browser, tmp_path):
    """The page reads and resizes photos as a SavedModel does."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((6, 4, 3)), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(7)])
    serving = Serving(class_names=NAMES, activation="sigmoid")
    images = np.random.default_rng(0).uniform(-1, 1, (2, 6, 4, 3))
    for name, takes_pixels in (
        ("floats", False),
        ("pixels", True),
        ("unknown", False),
    ):
        served = serving
        if name == "unknown":  # A score that no photo reaches.
            known = KnownScore("energy", 1e3, activation="sigmoid")
            served = dataclasses.replace(serving, known=known)
        export_model(
            model,
            tmp_path,
            images.astype("float32"),
            ["tflite"],
            name=name,
            threads=(),
            verbose=False,
            serving=served,
            tflite_quantizations=["float32"],
            tflite_takes_pixels=takes_pixels,
        )
    (tmp_path / "tflite" / "tags").mkdir()
    tags = tmp_path / "tflite" / "tags" / "1"
    shutil.copytree(tmp_path / "tflite" / "floats" / "1", tags)
    (tmp_path / "tflite" / "bare").mkdir()
    bare = tmp_path / "tflite" / "bare" / "1"
    shutil.copytree(tmp_path / "tflite" / "floats" / "1", bare)
    (bare / "model.json").unlink()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 3), "uint8")
    pixels = np.repeat(np.repeat(pixels, 11, axis=0), 9, axis=1)
    content = tf.io.encode_png(pixels).numpy()
    scores = model(decode_inputs(tf.constant([content]), (6, 4, 3), serving))
    [expected] = decode_predictions(tf.sigmoid(scores), 5, NAMES)
    # A threshold that the third one just reaches, and the others do not.
    description = json.loads((tags / "model.json").read_text())
    limits = {name: 1 for name in NAMES}
    limits[expected[2][1]] = float(expected[2][2]) - 1e-4
    description["thresholds"] = [*limits.values()]
    (tags / "model.json").write_text(json.dumps(description))
    models = {
        name: ServedModel(name, folder)
        for name, folder in find_models(tmp_path).items()
    }
    with run_server(models) as address, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}/")
        page.get_by_text("a TFLite file needs the file model.json").wait_for()
        for name in ("floats", "pixels", "unknown"):
            page.select_option("#model", name)
            page.wait_for_selector("#message:empty", state="attached")
            page.locator("#result").wait_for(state="hidden")
            choose(page, content)
            found = [row.split("\t") for row in classes(page)]
            assert [label for label, _ in found] == [x[1] for x in expected]
            np.testing.assert_allclose(
                [float(text.rstrip(" %")) / 100 for _, text in found],
                [number for *_, number in expected],
                atol=0.02 if name == "pixels" else 0.001,
            )
            note = page.locator("#note").inner_text()
            assert note.startswith("Unknown") == (name == "unknown")
            assert page.locator("#look").is_hidden()
        page.select_option("#model", "tags")
        page.locator("#result").wait_for(state="hidden")
        choose(page, content)
        [label] = [row.split("\t")[0] for row in classes(page)]
        assert label == expected[2][1]


def test_an_exported_model(browser, served):
    """Its names of classes, and the attention of its own signature."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"{served}/")
    wait(page)
    choose(page, make_files(1)[0])
    with connect(served, model="zoo") as client:
        [expected] = client.classify(make_files(1))
    assert [row.split("\t")[0] for row in classes(page)] == [
        label for label, _ in expected
    ]
    for (_, number), row in zip(expected, classes(page)):
        assert f"{number:.1%}" == row.split("\t")[1].replace(" ", "")
    assert page.locator("#look").is_visible()
    size = "canvas => [canvas.width, canvas.height]"
    assert page.locator("#seen").evaluate(size) == [12, 8]
    assert page.locator("#heat").evaluate(size) == [3, 2]
    context.close()


# Of the model that names the largest channel of each pixel.
COLOURS = ["red", "grün", NASTY]
# Red left, then green, blue and green.
STRIPES = np.eye(3)[np.tile([0, 0, 1, 2, 1, 1], (8, 1))]


def encode_stripes(kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray((255 * STRIPES).astype("uint8")).save(stream, kind)
    return stream.getvalue()


@pytest.fixture(scope="module")
def map_models(tmp_path_factory):
    """Return models with an answer for each pixel, in both served formats."""
    folder = tmp_path_factory.mktemp("maps")
    weights = {
        "colours": np.eye(3),
        # Green is 4 away, blue is 1, red 2: of pixels from -1 to 1.
        "near": np.array([[1.0], [2.0], [0.5]]),
    }
    choices = {
        "colours": {"output": "pixel_logits", "class_names": COLOURS},
        "near": {"output": "depths", "larger_depths": "far"},
    }
    images = np.random.default_rng(0).uniform(-1, 1, (2, 8, 6, 3))
    models = {}
    for name, kernel in weights.items():
        layers = [keras.Input((8, 6, 3)), keras.layers.Conv2D(len(kernel.T), 1)]
        model = keras.Sequential(layers)
        bias = np.zeros(3) if name == "colours" else [3.5]
        model.set_weights([kernel[None, None], np.array(bias)])
        for format in ("saved_model", "tflite"):
            place = folder / format
            export_model(
                model,
                place,
                images.astype("float32"),
                [format],
                name=name,
                threads=(),
                verbose=False,
                serving=Serving(**choices[name]),
                tflite_quantizations=["float32"],
            )
            path = place / format / name
            models[f"{name} {format}"] = ServedModel(name, path)
    return models


@pytest.fixture(scope="module")
def map_address(map_models):
    with run_server(map_models) as address:
        yield address


@pytest.fixture
def map_page(browser, map_address):
    """Return the page of these models, on a phone."""
    size = {"width": 390, "height": 844}
    context = browser.new_context(viewport=size)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{map_address}/")
    wait(page)
    yield page
    context.close()
    assert not said


def show_map(page, model, content, name="photo.png"):
    page.select_option("#model", model)
    page.locator("#result").wait_for(state="hidden")
    wait(page)
    choose(page, content, name)
    page.locator("#overlay").wait_for()


def levels_of(page, selector):
    """Return the colours of a canvas, (H, W, 3)."""
    width, height, data = page.locator(selector).evaluate(
        """canvas => {
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const options = { willReadFrequently: true };
            const context = copy.getContext("2d", options);
            context.drawImage(canvas, 0, 0);
            const area = [0, 0, canvas.width, canvas.height];
            return [...area.slice(2), [...context.getImageData(...area).data]];
        }"""
    )
    return np.reshape(data, (height, width, 4))[..., :3]


def to_levels(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


LEGEND = "#overlay .legend"


@pytest.mark.parametrize("format", ["saved_model", "tflite"])
def test_a_map_over_the_photo(map_page, format):
    show_map(map_page, f"colours {format}", encode_stripes())
    rows = map_page.locator(f"{LEGEND} tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["grün", "50.0 %"],
        ["red", "33.3 %"],
        [NASTY, "16.7 %"],
    ]
    palette = np.array([to_levels(colour) for colour in CLASS_COLOURS])
    drawn = levels_of(map_page, "#overlay .map")
    np.testing.assert_array_equal(drawn, palette[STRIPES.argmax(axis=-1)])
    seen = levels_of(map_page, "#overlay canvas:not(.map)")
    np.testing.assert_allclose(seen[:, [0, 5]], 255 * STRIPES[:, [0, 5]])
    swatches = map_page.locator(".swatch").evaluate_all(
        "all => all.map((each) => each.style.background)"
    )
    for swatch, index in zip(swatches, (1, 0, 2)):
        assert swatch == f"rgb({', '.join(map(str, palette[index]))})"
    assert map_page.locator("#classes").is_hidden()
    layer = map_page.locator("#overlay .map")
    slider = map_page.get_by_label("Opacity of the classes")
    for percent in (0, 35, 100):
        slider.fill(str(percent))
        found = layer.evaluate("layer => getComputedStyle(layer).opacity")
        assert float(found) == percent / 100
    boxes = [
        map_page.locator(f"#overlay {part}").bounding_box()
        for part in (".map", "canvas:not(.map)")
    ]
    assert boxes[0] == boxes[1]
    assert map_page.evaluate(WIDER) == []


@pytest.mark.parametrize("format", ["saved_model", "tflite"])
def test_depths_over_the_photo(map_page, format):
    show_map(map_page, f"near {format}", encode_stripes())
    found = map_page.locator(f"{LEGEND} span").all_inner_texts()
    # 3.5 - 2 * 3.5 + twice the weight of the one channel that is white.
    assert found == ["near: 1", "far: 4"]
    drawn = levels_of(map_page, "#overlay .map")
    ends = [to_levels(colour) for colour in NUMBER_COLOURS]
    assert (drawn[:, 3] == ends[0]).all() and (drawn[:, 4:] == ends[-1]).all()
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) == 3
    bar = levels_of(map_page, f"{LEGEND} canvas")
    assert [*bar[0, 0]] == ends[0] and [*bar[0, -1]] == ends[-1]
    assert map_page.evaluate(WIDER) == []


def test_a_map_of_a_photo_that_the_browser_cannot_show(map_page):
    show_map(
        map_page, "colours saved_model", encode_stripes("TIFF"), "photo.tif"
    )
    map_page.locator("#photo").wait_for(state="hidden")
    drawn = levels_of(map_page, "#overlay .map")
    assert [*drawn[0, 0]] == to_levels(CLASS_COLOURS[0])
    assert map_page.locator(f"{LEGEND} tbody tr").count() == 3


def test_a_page_with_a_map_is_accessible(map_page):
    from axe_playwright_python.sync_playwright import Axe

    for model in ("colours saved_model", "near saved_model"):
        show_map(map_page, model, encode_stripes())
        found = Axe().run(map_page)
        assert found.violations_count == 0, found.generate_report()
