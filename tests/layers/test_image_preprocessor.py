"""ImagePreprocessor agrees with Pillow and preprocess_input."""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.layers import ImagePreprocessor
from keras_vit.preprocessing.description import RESIZE_MODES
from tests.tiny import noise, tiny_config, to_numpy

SIZE = (40, 24)


def draw_photo(height, width):
    """Return smooth random pixels, an image of Pillow."""
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(3).integers(0, 256, (9, 7, 3), "uint8")
    return pillow.fromarray(pixels).resize((width, height))


def test_in_a_graph_before_a_model():
    model = VisionTransformer(tiny_config(preprocessing="clip"))
    photos = keras.Input((None, None, 3), dtype="uint8")
    layer = ImagePreprocessor.for_model(model, name="preprocess")
    whole = keras.Model(photos, model(layer(photos)))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 50, 70, 3), "uint8")
    expected = model(layer(pixels))
    found = whole.predict_on_batch(pixels)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-5)


def test_half_types_keep_the_levels_apart():
    layer = ImagePreprocessor((2, 2), dtype="mixed_bfloat16")
    pixels = np.arange(12, dtype="uint8").reshape(1, 2, 2, 3) + 200
    found = layer(pixels)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    found = to_numpy(keras.ops.cast(found, "float32"))
    np.testing.assert_allclose(found, pixels / 127.5 - 1, atol=2e-3)


@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_in_a_data_pipeline_on_every_backend(mode):
    tf = pytest.importorskip("tensorflow")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 50, 70, 3), "uint8")
    layer = ImagePreprocessor(SIZE, "imagenet", mode, "bicubic", 0.875)
    data = tf.data.Dataset.from_tensors(pixels).map(layer)
    (found,) = data.as_numpy_iterator()
    assert found.dtype == "float32"
    # PyTorch and JAX resize with other kernels than TensorFlow.
    np.testing.assert_allclose(found, to_numpy(layer(pixels)), atol=2e-3)


def test_an_unknown_size_is_named():
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Only TensorFlow calls layers on images of unknown size.")
    layer = ImagePreprocessor((32, 32), resize_mode="shortest")
    call = tf.function(layer, [tf.TensorSpec((None, None, None, 3))])
    with pytest.raises(ValueError, match="must have a known height and width"):
        call(noise(1, 40, 50, 3))
    squash = ImagePreprocessor((32, 32))
    call = tf.function(squash, [tf.TensorSpec((None, None, None, 3))])
    assert call(noise(1, 40, 50, 3)).shape == (1, 32, 32, 3)


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="`model` must be a VisionTransformer"):
        ImagePreprocessor.for_model(keras.Sequential())
