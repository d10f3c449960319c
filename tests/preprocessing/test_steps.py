"""One list of operations: all that compute it agree, on odd images as well."""

import json
import pathlib
import shutil
import subprocess

import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from PIL import Image  # noqa: E402

from keras_vit import Preprocessing, preprocess_input  # noqa: E402
from keras_vit.layers import ImagePreprocessor  # noqa: E402
from keras_vit.preprocessing import image_files, resizing  # noqa: E402
from keras_vit.preprocessing.description import (  # noqa: E402  # noqa: E402
    INTERPOLATIONS,
    RESIZE_MODES,
    cut_size,
    resize_small_step,
    resized_size,
)

SIZE = (40, 24)
# (height, width), also of a line of pixels that a cover would make enormous.
SHAPES = [(171, 133), (60, 99), (20, 18), (7, 300), (3, 1), (1, 60_000)]
SETTINGS = [
    *(
        Preprocessing("imagenet", mode, interpolation)
        for mode in RESIZE_MODES
        for interpolation in INTERPOLATIONS
    ),
    *(Preprocessing("imagenet", mode, "bicubic", 0.8) for mode in RESIZE_MODES),
]
PAGE = pathlib.Path(resizing.__file__).parents[1] / "data/web/resize.js"
SCRIPT = f"""
import {{ readFileSync }} from "node:fs";
import {{ applySteps }} from "{PAGE.as_uri()}";
const {{ steps, ...image }} = JSON.parse(readFileSync(0));
const data = Uint8Array.from(image.data);
const found = applySteps({{ ...image, data, channels: 3 }}, steps);
console.log(JSON.stringify([found.height, found.width, [...found.data]]));
"""


def draw(shape):
    """Return smooth random pixels, an image of Pillow."""
    pixels = np.random.default_rng(3).integers(0, 256, (9, 7, 3), "uint8")
    return Image.fromarray(pixels).resize(shape[::-1])


def by_layer(photo, settings):
    if keras.backend.backend() == "torch" and min(photo.size) < 2:
        pytest.skip("PyTorch antialiases no line of pixels.")
    layer = ImagePreprocessor(SIZE, *fields(settings))
    [image] = keras.ops.convert_to_numpy(layer(np.asarray(photo)[None]))
    return image


def by_layer_in_a_pipeline(photo, settings):
    layer = ImagePreprocessor(SIZE, *fields(settings))
    images = tf.data.Dataset.from_tensors(np.asarray(photo)[None]).map(layer)
    return next(iter(images)).numpy()[0]


def fields(settings):
    return (
        settings.normalization,
        settings.resize_mode,
        settings.interpolation,
        settings.crop_fraction,
    )


def by_graph(photo, settings):
    steps = settings.steps(SIZE)
    image = tf.constant(np.asarray(photo), tf.float32)
    found = tf.function(lambda image: resizing.apply_steps(image, steps))(image)
    return normalized(found.numpy(), settings)


def by_page(photo, settings):
    node = shutil.which("node")
    if not node:
        pytest.skip("Needs Node.js.")
    pixels = np.asarray(photo)
    content = {
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "data": pixels.ravel().tolist(),
        "steps": settings.steps(SIZE),
    }
    done = subprocess.run(
        [node, "--input-type=module", "-e", SCRIPT],
        input=json.dumps(content).encode(),
        capture_output=True,
        check=True,
    )
    height, width, data = json.loads(done.stdout)
    return normalized(np.reshape(data, (height, width, 3)), settings)


def by_line(photo, settings):
    from trainers.augment.augmentation import line_of
    from trainers.data.batches import make_prepare_one

    prepare, _ = make_prepare_one(line_of(settings, SIZE), SIZE)
    return prepare(tf.constant(np.asarray(photo))).numpy()


def normalized(pixels, settings):
    return preprocess_input(pixels, "channels_last", settings.normalization)


WAYS = [by_layer, by_layer_in_a_pipeline]
if keras.backend.backend() == "tensorflow":  # The others have no part in them.
    WAYS += [by_graph, by_page, by_line]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_all_agree_with_pillow(way, settings):
    has_no_line = settings.crop_fraction < 1  # Lines crop squares alone.
    if way is by_line and has_no_line:
        return
    for shape in SHAPES:
        photo = draw(shape)
        pixels = image_files.apply_steps(photo, settings.steps(SIZE))
        expected = normalized(np.asarray(pixels), settings)
        found = way(photo, settings)
        # Pillow rounds to whole numbers twice, and cuts off what a cubic
        # kernel overshoots twice; a level is 1 / 255 / 0.22.
        levels = {"bilinear": 1.2, "bicubic": 4, "area": 0.6}
        levels = levels[settings.interpolation]
        np.testing.assert_allclose(found, expected, atol=levels / 255 / 0.22)
        assert np.abs(found - expected).mean() < 0.5 / 255 / 0.22


def test_sizes_in_a_graph_are_those_of_python():
    random = np.random.default_rng(0)
    cover = Preprocessing(resize_mode="shortest").steps((17, 23))[0]
    for step in (cover, resize_small_step(23)):
        for shape in [*random.integers(1, 200, (40, 2)).tolist(), [1, 999]]:
            image = resizing.apply_steps(tf.zeros((*shape, 1)), [step])
            want = resized_size(step, cut_size(step, tuple(shape)))
            assert tuple(image.shape[:2]) == want, shape


def test_a_line_of_pixels_stays_small():
    """It would have 60,000 x 256 x 256 pixels."""
    image = resizing.apply_steps(
        tf.zeros((1, 60_000, 3)), [resize_small_step(256)]
    )
    assert image.shape == (256, 64 * 256, 3)
