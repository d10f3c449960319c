"""Lines of operations: how they are read, and those of a model."""

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
    try_operations,
)
from trainers.data.batches import make_prepare_one
from trainers.recipes.augreg import AUGREG_LEVELS


def test_arguments_by_place_by_name_and_left_out(image):
    texts = [
        "inception_crop(8, 0.4)",
        " inception_crop ( 8 , smallest = .4 ) ",
        "inception_crop(smallest=4e-1, size=+8)",
        "inception_crop(smallest=0.4,)",
        "inception_crop(None, 0.4)",
    ]
    results = [
        parse_augmentation(text, (8, 8)).image(image, (0, 1)) for text in texts
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(
    "text, fault, message",
    [
        ("flip", "flip", "must be one of 'affine', .*'mixup'.*='flip'"),
        ("__import__('os')", "__import__", "must be one of"),
        ("flip_lr|2", "2", "must be operations separated by.*Received: 2"),
        ("flip_lr|a.b(2)", "a.b", "must be operations .*Received: a.b"),
        ("flip_lr # |mixup", "#", "must be operations .*Received: '#'"),
        ("pad_crop(x)", "x", "must be numbers or None. Received: x"),
        ("pad_crop(True)", "True", "must be numbers or None. Received: True"),
        ("pad_crop(*x)", "*x", "must be numbers or None"),
        ("flip_lr(**x)", "flip_lr", "unexpected keyword argument"),
        ("flip_lr|pad_crop", "pad_crop", "missing .*'pixels'"),
        ("pad_crop(4, 5)", "pad", r"too many .*Received: pad_crop\(4, 5\)"),
        ("pad_crop(1, pixels=3)", "pad", "multiple values .*'pixels'"),
        ("pad_crop(pixels=1, pixels=3)", "pad", "given twice"),
        ("inception_crop(image_size=3)", "inc", "unexpected.*'image_size'"),
        ("inception_crop(0.3)", "0.3", "whole"),
        ("inception_crop(size=0)", "size", "`size` must be positive"),
        ("inception_crop(8, 0)", "0)", r"\(0, 1\].*smallest=0"),
        ("pad_crop(-1)", "-1", "0 or more. Received: pixels=-1"),
        ("pad_crop(None)", "None", "must be a number"),
        ("affine(1e999, 0, 0)", "1e999", "must be finite"),
        ("resize(2147483648)", "2147483648", "less than 32 bits.*=2147483648"),
        ("affine(-1, 0, 0)", "-1", "`degrees` must be 0 or more"),
        ("affine(0, -1, 0)", "-1", "`shift` must be 0 or more"),
        ("affine(0, 0, 1)", "1", r"`scale` must be in \[0, 1\)"),
        ("random_crop(0)", "0", "positive"),
        ("resize_small", "resize_small", "missing .*'size'"),
        ("randaugment(0, 1)", "0", "`num_ops` must be positive"),
        ("randaugment(2, -1)", "-1", "`magnitude` must be 0 or more"),
        ("random_erasing(1.5)", "1.5", "`probability` must be in"),
        ("random_erasing(1, 0)", "0)", "`smallest` must be in"),
        ("random_erasing(1, 0.1, 0.05)", "0.05", "`largest` must be in"),
        ("random_erasing(aspect=0)", "aspect", "`aspect` must be in"),
        ("random_erasing(fill=256)", "fill", "`fill` must be in"),
        ("value_range(1, 1)", "1)", "`high` must be more than `low`"),
        ("normalize(caffe)", "caffe", "`mean` must be one of vit, imagenet"),
        ("normalize((1, 2))", "normalize", "`deviation` must be given with"),
        ("normalize((1,), (0,))", "(0,", "greater than 0"),
        ("normalize((1, 2), (1,))", "(1,)", "as there are means"),
        ("normalize((None,), (1,))", "(N", "`mean` must be numbers"),
        ("resize(7, sharp)", "sharp", "`method` must be one of antialias"),
        ("normalize(clip)|resize", "resize", "last operation on images"),
        ("mixup(0)", "0", "`alpha` must be positive"),
        ("mixup(0.2)|flip_lr", "flip_lr", "before those on batches.*flip_lr"),
    ],
)
def test_errors_point_at_the_fault(text, fault, message):
    with pytest.raises(ValueError, match=f"^`augment`: .*{message}") as error:
        parse_augmentation(text, SIZE)
    rule, line, caret = str(error.value).split("\n")
    assert "Received: " in rule
    assert line.strip() == text.strip()
    assert caret.endswith(" ^") and not caret[:-1].strip()
    place = len(caret) - 1
    # `fault` starts there, and where there are several, at the last.
    assert place == (line.rindex(fault) if fault else len(line))


@pytest.mark.parametrize(
    "text",
    ["|flip_lr", "flip_lr pad_crop(2)", "pad_crop(2", "pad_crop(4x)", "a\0"],
)
def test_text_that_is_not_a_line_of_operations(text):
    """Python's parser names the error and its position."""
    with pytest.raises(
        ValueError, match="must be operations .* Received: ."
    ) as error:
        parse_augmentation(text, SIZE)
    _, line, caret = str(error.value).split("\n")
    assert line == f"  {text}" and caret.endswith(" ^")
    assert len(caret) <= len(line) + 1


def test_augreg_levels_are_texts_that_can_be_read(image):
    for level, text in AUGREG_LEVELS.items():
        result = parse_augmentation(text, (8, 8)).image(image, (0, 0))
        assert result.shape == (8, 8, 3)
        assert ("randaugment" in text) == (level != "none")
        assert ("mixup" in text) == (level not in ("none", "light1"))


SIZE = (32, 32)
SETTINGS = [
    Preprocessing("imagenet"),
    Preprocessing("clip", "squash", "bicubic", 0.8),
    Preprocessing("vit", "shortest", "bicubic", 0.8),
    Preprocessing(((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)), "shortest"),
    Preprocessing("vit", "shortest_rounded", "area", 0.8),
    Preprocessing("clip", "shortest_rounded", "bicubic"),
    Preprocessing("clip", "squash", "area"),
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
    expected = Preprocessing(from_range(0, 2), "shortest_rounded", "area", 0.8)
    assert settings == expected
    assert preprocessing_in("inception_crop", SIZE) == Preprocessing()
    # A part of the image that is larger than the whole is the whole.
    found = preprocessing_in("resize_small(20)|central_crop", SIZE)
    assert found.crop_fraction == 1
    # 48 / (48 / 59) is less than 59.
    found = preprocessing_in("resize_small(59)|central_crop", (48, 48))
    assert found.uncropped_size((48, 48)) == (59, 59)


def test_a_range_of_pixels_does_not_change_the_resizing():
    settings = Preprocessing("vit", pixel_range=(0, 4095))
    assert line_of(settings, (8, 8)) == line_of(Preprocessing("vit"), (8, 8))


def test_images_that_an_operation_does_not_take_are_refused_at_once():
    """Not in the graph of a data set, within an error of TensorFlow."""
    line = "flip_lr|randaugment(2, 5)"
    for channels in (1, 3):
        try_operations(line, "augment", channels)
    with pytest.raises(ValueError, match="`randaugment`.*`augment`"):
        try_operations(line, "augment", 4)
    try_operations("flip_lr", "augment", 4)
