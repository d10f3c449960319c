"""The preprocessing of a model as a line of operations."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing, preprocess_input
from keras_vit.export.agreement import read_for_model
from keras_vit.preprocessing.description import from_range
from keras_vit.preprocessing.image_files import apply_steps
from trainers.augment.augmentation import (
    add_normalization,
    line_of,
    parse_augmentation,
    preprocessing_in,
)
from trainers.data.batches import make_prepare_one

SIZE = (32, 32)
SETTINGS = [
    Preprocessing("imagenet"),
    Preprocessing("clip", "squash", "bicubic", 0.8),
    Preprocessing("vit", "shortest", "bicubic", 0.8),
    Preprocessing(((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)), "shortest"),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_line_prepares_images_as_the_settings_say(settings):
    line = line_of(settings, SIZE)
    prepare, normalization = make_prepare_one(line, SIZE)
    assert normalization == settings.mean_and_deviation
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), "uint8")
    photo = Image.fromarray(pixels).resize((120, 77))
    found = prepare(tf.constant(np.asarray(photo)))
    expected = np.asarray(apply_steps(photo, settings.steps(SIZE)))
    expected = preprocess_input(
        expected, "channels_last", settings.normalization
    )
    level = 1 / 255 / min(settings.deviation)
    np.testing.assert_allclose(found, expected, atol=1.2 * level)


@pytest.mark.parametrize("shape", [(120, 77), (40, 99)])
def test_the_steps_of_a_server_end_in_the_size_of_the_model(shape):
    """Also if the last operation covers that size with a larger image."""
    line = f"resize_to_cover({SIZE[0]})"
    prepare, _ = make_prepare_one(line, SIZE)
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), "uint8")
    found = read_for_model(
        tf.io.encode_png(pixels).numpy(),
        3,
        parse_augmentation(line, SIZE).steps(SIZE),
        Preprocessing("vit").mean_and_deviation,
    )
    assert found.shape == (*SIZE, 3)
    expected = prepare(tf.constant(pixels))
    np.testing.assert_allclose(found, expected, atol=2.1 / 255)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_and_back(settings):
    found = preprocessing_in(line_of(settings, SIZE), SIZE)
    assert found == settings


def test_the_default_is_the_resizing_of_the_official_code():
    assert line_of(Preprocessing(), SIZE) == ""
    assert preprocessing_in("", SIZE) == Preprocessing()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "normalize(clip)"),
        ("flip_lr", "flip_lr|normalize(clip)"),
        (
            "flip_lr | mixup(0.2)|cutmix",
            "flip_lr|normalize(clip)|mixup(0.2)|cutmix",
        ),
        ("mixup", "normalize(clip)|mixup"),
        ("value_range(0, 1)", "value_range(0, 1)"),
        ("normalize(imagenet)|mixup", "normalize(imagenet)|mixup"),
    ],
)
def test_a_line_gets_the_normalisation_of_a_model(line, expected):
    settings = Preprocessing("clip", "shortest")
    assert add_normalization(line, settings) == expected
    assert add_normalization(line, Preprocessing()) == line


def test_what_a_recipe_does_is_written_into_its_model():
    line = "resize_small(40)|central_crop|value_range(0, 2)"
    settings = preprocessing_in(line, SIZE)
    expected = Preprocessing(from_range(0, 2), "shortest", "bilinear", 0.8)
    assert settings == expected
    assert preprocessing_in("inception_crop", SIZE) == Preprocessing()
    # A part of the image that is larger than the whole is the whole.
    found = preprocessing_in("resize_small(20)|central_crop", SIZE)
    assert found.crop_fraction == 1
