"""Steps in a graph of TensorFlow, against the sizes and filters of Pillow."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from PIL import Image  # noqa: E402

from keras_vit import Preprocessing  # noqa: E402
from keras_vit.export.image_steps import steps_of  # noqa: E402
from keras_vit.image_resizing import apply_steps, cover_size  # noqa: E402
from keras_vit.preprocessing.image_files import fit_image  # noqa: E402
from keras_vit.preprocessing.settings import (  # noqa: E402
    INTERPOLATIONS,
    RESIZE_MODES,
)


def test_sizes_are_those_of_the_settings():
    settings = Preprocessing(resize_mode="shortest")
    random = np.random.default_rng(0)
    for height, width in random.integers(1, 200, (40, 2)):
        shape = (int(height), int(width))
        image = tf.zeros((*shape, 1))
        found = cover_size(image, (17, 23), "antialias").shape[:2]
        assert tuple(found) == settings.resized_size(shape, (17, 23)), shape


@pytest.mark.parametrize("mode", RESIZE_MODES)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_steps_are_what_pillow_does(mode, interpolation):
    settings = Preprocessing("vit", mode, interpolation, 0.8)
    steps = steps_of(settings, (32, 24))
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), "uint8")
    photo = Image.fromarray(pixels).resize((120, 77))
    image = tf.constant(np.asarray(photo), tf.float32)
    found = tf.function(lambda image: apply_steps(image, steps))(image)
    expected = np.asarray(fit_image(photo, (32, 24), settings))
    # Pillow rounds to whole numbers twice.
    np.testing.assert_allclose(found, expected, atol=1.1)
    assert np.abs(found - expected).mean() < 0.4


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
@pytest.mark.parametrize(
    "step",
    [
        {"kind": "resize_small", "size": 224},
        {
            "kind": "resize_to_cover",
            "height": 224,
            "width": 224,
            "method": "antialias",
        },
    ],
)
def test_an_image_that_would_become_enormous_is_refused(step, size):
    """In a graph, where tf.data and servers resize, and by Pillow."""
    settings = Preprocessing(resize_mode="shortest")
    with pytest.raises(ValueError, match=f"too long.*{size[0]} x {size[1]}"):
        fit_image(Image.new("L", size[::-1]), (224, 224), settings)
    resize = tf.function(lambda image: apply_steps(image, [step]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="too long"):
        resize(tf.zeros((*size, 1)))
    assert min(resize(tf.zeros((30, 600, 1))).shape[:2]) == 224
