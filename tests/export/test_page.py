"""The exported web page in headless Chromium, with the real LiteRT.js."""

import base64
import dataclasses
import functools
import http.server
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_sample_images

from keras_vit.analysis.colours import CLASS_COLOURS, NUMBER_COLOURS
from keras_vit.export import Serving, export_file
from keras_vit.export.formats.saved_model import decode_inputs
from keras_vit.export.formats.web import fetch_engine
from keras_vit.known import KnownScore
from keras_vit.models import DenseConfig, dense_predictor
from keras_vit.preprocessing.description import (
    central_crop_step,
    resize_small_step,
    resize_step,
)
from keras_vit.preprocessing.resizing import apply_steps
from tests.analysis.browsing import Visit, open_browser, settle
from tests.export.conftest import make_model
from tests.pictures import encode
from tests.tiny import randomize
from trainers.augment.augmentation import parse_augmentation

NAMES = ["cat", "<b>dog</b>", "Bär & Co", "猫", 'a "quoted" name', "f", "g"]
THRESHOLDS = [0.5, 0.9, 0.2, 0.999, 0.7, 0.95, 0.99]
CAMERA = (
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
SIZE = (32, 24)
PHOTO = load_sample_images().images[0]


@pytest.fixture(scope="module")
def sharp_model():
    """Return a model with confident predictions, so that errors show."""
    model = make_model(image_size=SIZE)
    head = model.get_layer("predictions")
    head.kernel.assign(8 * head.kernel)
    return model


@pytest.fixture(scope="module")
def known(sharp_model):
    """Return a score that about half of the files reach."""
    score = KnownScore("energy")
    scores = np.sort([energy_of(sharp_model, x) for x in FILES.values()])
    gaps = np.diff(scores)
    i = 4 + np.argmax(gaps[4:-4])
    return dataclasses.replace(score, threshold=float(scores[i : i + 2].mean()))


@pytest.fixture(scope="module")
def map_models():
    """Return models with an answer for each pixel, by the names of pages."""
    encoder = make_model(image_size=SIZE)
    configs = {
        "map": DenseConfig(7),
        "depth": DenseConfig(1, activation="sigmoid", output_scale=20),
    }
    return {
        name: randomize(dense_predictor(encoder, config))
        for name, config in configs.items()
    }


@pytest.fixture(scope="module")
def site(sharp_model, map_models, known, tmp_path_factory):
    """Return a folder with a page, below the root of a web server."""
    patch = pytest.MonkeyPatch()
    # Without a network, npm would try again for a minute.
    patch.setenv("npm_config_fetch_retries", "0")
    try:
        fetch_engine()
    except OSError as error:
        pytest.skip(f"LiteRT.js is not in the cache, and {error}")
    finally:
        patch.undo()
    folder = tmp_path_factory.mktemp("site")
    images = np.random.default_rng(0).uniform(-1, 1, (4, *SIZE, 3))
    export_file(
        sharp_model,
        folder / "my page",
        images.astype("float32"),
        "web",
        serving=Serving(class_names=NAMES),
        name="Cats & dogs",
    )
    export_file(
        sharp_model,
        folder / "tags",
        images.astype("float32"),
        "web",
        serving=Serving(
            class_names=NAMES, activation="sigmoid", thresholds=THRESHOLDS
        ),
    )
    export_file(
        sharp_model,
        folder / "known",
        images.astype("float32"),
        "web",
        serving=Serving(class_names=NAMES, known=known),
    )
    for name, model in map_models.items():
        export_file(
            model,
            folder / name,
            images.astype("float32"),
            "web",
            serving=Serving(class_names=NAMES if name == "map" else None),
        )
    return folder


class Handler(http.server.SimpleHTTPRequestHandler):
    """The handler of `python -m http.server`, without its messages."""

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(Handler, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser(site):
    with open_browser(*CAMERA) as browser:
        yield browser


@pytest.fixture(scope="module")
def visit(browser, address):
    visit = Visit(browser)
    visit.violations = []
    visit.page.expose_function(
        "tell", lambda address: visit.violations.append(address)
    )
    visit.page.add_init_script(
        "addEventListener('securitypolicyviolation',"
        " (event) => tell(event.blockedURI))"
    )
    visit.context.route(
        lambda url: not url.startswith(address), lambda route: route.abort()
    )
    visit.page.goto(f"{address}/my%20page/")
    wait_for(visit, "ready")
    return visit


def wait_for(visit, state):
    visit.page.wait_for_selector(f'html[data-state="{state}"]')


def with_orientation(number):
    exif = Image.Exif()
    exif[0x112] = number
    return exif


FILES = {
    "photo.png": encode(PHOTO, "PNG"),
    "small.png": encode(PHOTO[100:113, 200:219], "PNG"),
    "grey.png": encode(PHOTO[..., 0], "PNG"),
    "photo.jpg": encode(PHOTO, "JPEG"),
    "fine.jpg": encode(PHOTO[:301, :211], "JPEG", quality=97, subsampling=0),
    "progressive.jpg": encode(PHOTO, "JPEG", progressive=True),
    "grey.jpg": encode(PHOTO[..., 0], "JPEG"),
    "cmyk.jpg": encode(Image.fromarray(PHOTO).convert("CMYK"), "JPEG"),
    **{
        f"turned {number}.jpg": encode(
            PHOTO[:99, :213], "JPEG", exif=with_orientation(number)
        )
        for number in range(1, 9)
    },
}


def energy_of(model, content):
    images = decode_inputs(tf.constant([content]), (*SIZE, 3), Serving())
    [logits] = model.predict_on_batch(images)
    return float(tf.reduce_logsumexp(logits))


def show(visit, name, content, state="answered"):
    """Choose a file as a user does; return the text of the page."""
    visit.page.evaluate("document.documentElement.dataset.state = 'asked'")
    visit.page.locator("#file").set_input_files(
        {"name": name, "mimeType": "", "buffer": content}
    )
    wait_for(visit, state)
    rows = visit.page.locator("#classes tr").evaluate_all(
        """rows => rows.map((row) => [
            row.querySelector(".name").textContent,
            Number(row.dataset.probability),
            row.querySelector(".share").textContent,
        ])"""
    )
    return rows


def expected_probabilities(model, content):
    images = decode_inputs(tf.constant([content]), (*SIZE, 3), Serving())
    return keras.ops.softmax(model.predict_on_batch(images))[0].numpy()


def test_the_answers_are_those_of_the_model(visit, sharp_model):
    answers = set()
    for name, content in FILES.items():
        expected = expected_probabilities(sharp_model, content)
        rows = show(visit, name, content)
        order = np.argsort(-expected)[:5]
        assert rows[0][0] == NAMES[order[0]], name
        found = dict(row[:2] for row in rows)
        known = [found[NAMES[index]] for index in order[:3]]
        np.testing.assert_allclose(
            known, expected[order[:3]], atol=1e-4, err_msg=name
        )
        assert rows[0][2] == f"{100 * rows[0][1]:.1f} %"
        answers.add(round(rows[0][1], 3))
    # The photos differ, and the model sees it.
    assert len(answers) > 8


def test_the_page_asks_nobody_else(visit, address):
    """And its policy would not let it."""
    show(visit, "photo.png", FILES["photo.png"])
    loaded = [url for url in visit.asked if not url.startswith("blob:")]
    assert loaded and all(
        url.startswith((f"{address}/my%20page/", "data:")) for url in loaded
    )
    assert any(url.endswith(".wasm") for url in loaded)
    assert not visit.violations
    other = address.replace("127.0.0.1", "localhost")
    refused = visit.page.evaluate(
        """url => new Promise((done) => {
            addEventListener("securitypolicyviolation", (event) =>
                done(event.effectiveDirective));
            fetch(url).catch(() => {});
        })""",
        other,
    )
    assert refused == "connect-src"
    visit.page.wait_for_function("() => true")
    assert [url.rstrip("/") for url in visit.violations] == [other]
    visit.violations.clear()


def test_a_file_that_is_no_image_is_named(visit):
    assert not show(visit, "notes.txt", b"text", "failed")
    status = visit.page.locator("#status")
    assert "notes.txt is not an image that this" in status.inner_text()
    assert visit.page.locator("#picture").is_hidden()  # No icon of a fault.
    assert len(show(visit, "photo.png", FILES["photo.png"])) == 5
    assert "640 x 427 pixels, answered in" in status.inner_text()


def test_several_labels_at_their_thresholds(visit, address, sharp_model):
    visit.page.goto(f"{address}/tags/")
    wait_for(visit, "ready")
    counts = set()
    for name, content in FILES.items():
        images = decode_inputs(tf.constant([content]), (*SIZE, 3), Serving())
        [found] = tf.sigmoid(sharp_model.predict_on_batch(images)).numpy()
        order = np.argsort(-found)
        wanted = [i for i in order if found[i] >= THRESHOLDS[i]]
        rows = show(visit, name, content)
        names = [NAMES[i] for i in wanted or order[:5]]
        assert [row[0] for row in rows] == names, name
        note = visit.page.locator("#note").inner_text()
        assert note.startswith("No label reaches" if not wanted else "")
        assert bool(note) == (not wanted)
        counts.add(len(wanted))
    assert len(counts) > 1
    # A photo without a label.
    description = {"class_names": ["a", "b"], "activation": "sigmoid"}
    answer = visit.page.evaluate(
        """async (description) => {
            const { chooseClasses, nameClasses } =
                await import("./description.js");
            return [[0.2, 0.9], [0.6, 0.9], []].map((thresholds) =>
                chooseClasses(nameClasses({ logits: [0, 1] },
                    { ...description, thresholds }), 1));
        }""",
        {**description, "output": "logits"},
    )
    found = [
        ([x["name"] for x in y["classes"]], bool(y["note"])) for y in answer
    ]
    assert found == [(["a"], False), (["b"], True), (["b"], False)]
    visit.page.goto(f"{address}/my%20page/")
    wait_for(visit, "ready")


def test_photos_of_other_things_are_unknown(visit, address, sharp_model, known):
    visit.page.goto(f"{address}/known/")
    wait_for(visit, "ready")
    answers = set()
    for name, content in FILES.items():
        is_known = energy_of(sharp_model, content) >= known.threshold
        assert len(show(visit, name, content)) == 5
        note = visit.page.locator("#note").inner_text()
        assert note.startswith("" if is_known else "Unknown: this does not")
        assert bool(note) == (not is_known)
        answers.add(is_known)
    assert answers == {True, False}
    visit.page.goto(f"{address}/my%20page/")
    wait_for(visit, "ready")


def drawn_colours(visit):
    """Return the colours of the map of the page, (H, W, 3)."""
    width, height, data = visit.page.locator("#overlay .map").evaluate(
        """canvas => {
            const { width, height } = canvas;
            const context = canvas.getContext("2d");
            const { data } = context.getImageData(0, 0, width, height);
            return [width, height, [...data]];
        }"""
    )
    return np.reshape(data, (height, width, 4))[..., :3]


def to_levels(colours):
    return np.array(
        [[int(x[i : i + 2], 16) for i in (1, 3, 5)] for x in colours]
    )


@pytest.fixture
def on_a_phone(visit):
    size = visit.page.viewport_size
    visit.page.set_viewport_size({"width": 390, "height": 844})
    yield
    visit.page.set_viewport_size(size)


def test_maps_of_classes(visit, address, map_models, on_a_phone):
    visit.page.goto(f"{address}/map/")
    wait_for(visit, "ready")
    summary = visit.page.locator("#summary").inner_text()
    assert summary.startswith("7 classes, 24 x 32 pixels.")
    palette, counts = to_levels(CLASS_COLOURS), set()
    for name in ("photo.png", "photo.jpg", "grey.png", "turned 6.jpg"):
        images = decode_inputs(
            tf.constant([FILES[name]]), (*SIZE, 3), Serving()
        )
        [classes] = map_models["map"].predict_on_batch(images).argmax(axis=-1)
        assert show(visit, name, FILES[name]) == []
        is_same = (drawn_colours(visit) == palette[classes]).all(axis=-1)
        assert is_same.mean() > 0.995, name
        shares = np.bincount(classes.ravel(), minlength=7) / classes.size
        rows = visit.page.locator("#overlay tbody tr").all_inner_texts()
        cells = [row.split("\t") for row in rows]
        found = {name: float(share.rstrip(" %")) for name, share in cells}
        assert {*found} <= {*NAMES} and len(found) == np.count_nonzero(shares)
        for label, share in zip(NAMES, shares):
            assert found.get(label, 0) == pytest.approx(100 * share, abs=0.5)
        counts.add(tuple(found.items()))
    assert len(counts) > 1
    assert visit.page.locator("#classes").is_hidden()
    slider = visit.page.get_by_label("Opacity of the classes")
    slider.fill("25")
    opacity = visit.page.locator("#overlay .map").evaluate(
        "map => getComputedStyle(map).opacity"
    )
    assert opacity == "0.25"
    check_page(visit)
    show(visit, "notes.txt", b"text", "failed")
    assert visit.page.locator("#overlay").is_hidden()
    visit.page.goto(f"{address}/my%20page/")
    wait_for(visit, "ready")


def check_page(visit):
    """Nothing is wider than the screen, and axe finds nothing."""
    from axe_playwright_python.sync_playwright import Axe

    page = "document.documentElement"
    assert visit.page.evaluate(f"{page}.scrollWidth <= {page}.clientWidth")
    assert not Axe().run(visit.page).response["violations"]
    assert not visit.violations


def test_depths(visit, address, map_models, on_a_phone):
    visit.page.goto(f"{address}/depth/")
    wait_for(visit, "ready")
    assert visit.page.locator("#summary").inner_text().startswith("Depths, 24")
    content = FILES["photo.png"]
    images = decode_inputs(tf.constant([content]), (*SIZE, 3), Serving())
    depths = map_models["depth"].predict_on_batch(images)[0, ..., 0]
    show(visit, "photo.png", content)
    near, far = visit.page.locator("#overlay .legend span").all_inner_texts()
    assert near.startswith("near: ") and far.startswith("far: ")
    found = [float(text.split()[1]) for text in (near, far)]
    assert found == pytest.approx([depths.min(), depths.max()], rel=0.01)
    drawn, ends = drawn_colours(visit), to_levels(NUMBER_COLOURS)
    for place, end in (
        (depths.argmin(), ends[0]),
        (depths.argmax(), ends[-1]),
    ):
        distance = np.abs(drawn.reshape(-1, 3)[place] - end).max()
        assert distance <= 3
    check_page(visit)
    visit.page.goto(f"{address}/my%20page/")
    wait_for(visit, "ready")


def test_a_photo_can_be_dropped(visit):
    visit.page.evaluate("document.documentElement.dataset.state = 'asked'")
    visit.page.evaluate(
        """content => {
            const text = atob(content);
            const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "dropped.png"));
            const event = new DragEvent("drop", {
                dataTransfer: data, bubbles: true, cancelable: true,
            });
            document.getElementById("drop").dispatchEvent(event);
        }""",
        base64.b64encode(FILES["small.png"]).decode(),
    )
    wait_for(visit, "answered")
    assert "19 x 13 pixels" in visit.page.locator("#status").inner_text()
    assert visit.page.locator("#picture").get_attribute("alt") == "dropped.png"


def test_the_camera(visit):
    button = visit.page.locator("#camera")
    button.click()
    wait_for(visit, "answered")
    assert visit.page.locator("#video").is_visible()
    assert visit.page.locator("#classes tr").count() == 5
    assert button.inner_text() == "Stop the camera"
    button.click()
    wait_for(visit, "ready")
    assert visit.page.evaluate("byId => !video.srcObject")
    visit.page.evaluate(
        """() => {
            navigator.mediaDevices.getUserMedia = async () => {
                throw new DOMException("no", "NotAllowedError");
            };
        }"""
    )
    button.click()
    wait_for(visit, "failed")
    assert (
        "may not use the camera" in visit.page.locator("#status").inner_text()
    )


def test_axe_finds_nothing(visit):
    from axe_playwright_python.sync_playwright import Axe

    show(visit, "photo.png", FILES["photo.png"])
    for scheme in ("dark", "light"):
        visit.page.emulate_media(color_scheme=scheme)
        settle(visit.page)
        found = Axe().run(visit.page).response
        assert len(found["passes"]) > 20
        assert not found["violations"], found["violations"]


def test_the_title_and_the_number_of_classes(visit):
    assert visit.page.title() == "Cats & dogs"
    summary = visit.page.locator("#summary").inner_text()
    assert summary.startswith("7 classes, 24 x 32 pixels.")


def apply_in_page(visit, image, steps):
    """Return the image after steps, computed by the page."""
    content = image.astype("uint8")
    height, width, data = visit.page.evaluate(
        """async ([content, height, width, channels, steps]) => {
            const { applySteps } = await import("./resize.js");
            const text = atob(content);
            const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
            const image = { height, width, channels, data: bytes };
            const result = applySteps(image, steps);
            return [result.height, result.width, [...result.data]];
        }""",
        [base64.b64encode(content).decode(), *image.shape, steps],
    )
    return np.reshape(data, (height, width, image.shape[-1]))


SHAPES = [(40, 30, 3), (50, 43, 3), (61, 33, 3), (32, 24, 1), (96, 35, 1)]
STEPS = [
    *(
        [resize_step(size, method)]
        for method in ("antialias", "bicubic", "bilinear", "area")
        for size in ((16, 16), (7, 33), (64, 100), (1, 2))
    ),
    [resize_small_step(37), central_crop_step((33, 33))],
    [resize_step(SIZE, "antialias", "resize_to_cover")],
    [
        resize_step((37, 37), "bicubic", "resize_to_cover"),
        central_crop_step(SIZE),
    ],
]


def test_operations_are_those_of_tensorflow(visit):
    random = np.random.default_rng(0)
    for steps in STEPS:
        for shape in [*SHAPES, (9, 77, 3), (1, 5, 1)]:
            image = random.integers(0, 256, shape).astype("float32")
            expected = apply_steps(tf.constant(image), steps)
            found = apply_in_page(visit, image, steps)
            # TensorFlow rounds the places of pixels to float32.
            np.testing.assert_allclose(found, expected, atol=4e-3)


def test_a_photo_too_small_for_a_crop_is_named(visit):
    steps = [central_crop_step((32, 24))]
    with pytest.raises(Exception, match="must have 24 x 32 pixels or more"):
        apply_in_page(visit, np.zeros((31, 99, 3)), steps)


def test_operations_of_a_line_are_steps():
    line = "resize_small(36)|central_crop"
    steps = parse_augmentation(line, SIZE).steps(SIZE)
    assert steps == [resize_small_step(36), central_crop_step(SIZE)]
    assert parse_augmentation("flip_lr|resize", SIZE).steps(SIZE) is None
