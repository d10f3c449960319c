"""RandAugment against Pillow, and its draws against closed forms."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from trainers.augment import randaugment
from trainers.augment.randaugment import RANDAUGMENT, apply_randaugment

PLACE = (0.25, 0.75)


def fill(image):
    return 128 if image.mode == "L" else (128, 128, 128)


def move(image, a, b, c, d, e, f):
    """Transform by a matrix whose (0, 0) is the centre of the first pixel."""
    c, f = c + (1 - a - b) / 2, f + (1 - d - e) / 2  # Pillow's is its corner.
    return image.transform(
        image.size, Image.AFFINE, (a, b, c, d, e, f), fillcolor=fill(image)
    )


def posterize(image, bits):
    if bits == 0:  # Pillow refuses it.
        return Image.new(image.mode, image.size)
    return ImageOps.posterize(image, bits)


def solarize_add(image, addition):
    levels = [min(i + addition, 255) if i < 128 else i for i in range(256)]
    return image.point(levels * len(image.getbands()))


def cutout(image, half):
    image = image.copy()
    x, y = int(PLACE[1] * image.width), int(PLACE[0] * image.height)
    image.paste(fill(image), (x - half, y - half, x + half, y + half))
    return image


# With the magnitudes of the official code written out, the sign being -1.
PILLOW = {
    "AutoContrast": lambda image, m: ImageOps.autocontrast(image),
    "Equalize": lambda image, m: ImageOps.equalize(image),
    "Invert": lambda image, m: ImageOps.invert(image),
    "Rotate": lambda image, m: image.rotate(-3 * m, fillcolor=fill(image)),
    "Posterize": lambda image, m: posterize(image, min(int(0.4 * m), 8)),
    "Solarize": lambda image, m: ImageOps.solarize(
        image, min(int(25.6 * m), 256)
    ),
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(0.18 * m + 0.1),
    "Contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(
        0.18 * m + 0.1
    ),
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(
        0.18 * m + 0.1
    ),
    "Sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(
        0.18 * m + 0.1
    ),
    "ShearX": lambda image, m: move(image, 1, -0.03 * m, 0, 0, 1, 0),
    "ShearY": lambda image, m: move(image, 1, 0, 0, -0.03 * m, 1, 0),
    "TranslateX": lambda image, m: move(image, 1, 0, -10 * m, 0, 1, 0),
    "TranslateY": lambda image, m: move(image, 1, 0, 0, 0, 1, -10 * m),
    "Cutout": lambda image, m: cutout(image, int(4 * m)),
    "SolarizeAdd": lambda image, m: solarize_add(image, int(11 * m)),
}
# Pillow computes positions in fixed point: where one is about half way between
# two pixels, it may take the other. The share of the pixels that may differ:
TIES = {"Rotate": 0.005, "ShearX": 0.005, "ShearY": 0.005}
# A quotient of floats that is a whole number may be cut off to the one below.
LEVELS = {"AutoContrast": 1}


def pixels(channels, size=(97, 120), low=20, high=230):
    """Return an image of shades with some noise, not of all levels."""
    random = np.random.default_rng(channels)
    y, x = np.meshgrid(*map(np.arange, size), indexing="ij")
    waves = np.stack([np.sin(x / 9), np.cos(y / 7), np.sin((x + y) / 5)], -1)
    image = (waves[..., :channels] + 1) / 2 + random.normal(
        0, 0.1, (*size, channels)
    )
    return (low + (high - low) * np.clip(image, 0, 1)).astype("uint8")


def to_pillow(image):
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", RANDAUGMENT)
def test_operation_and_its_magnitude_are_those_of_pillow(name, channels):
    image = pixels(channels)
    for magnitude in (0, 2.5, 9, 15, 25):
        if "Shear" in name and magnitude > 0:
            magnitude += 0.0123  # Of 0.3, every tenth row is half way.
        result = RANDAUGMENT[name](
            tf.constant(image), magnitude / 10, -1.0, PLACE
        )
        assert result.dtype == tf.uint8
        expected = np.asarray(PILLOW[name](to_pillow(image), magnitude))
        expected = expected.reshape(image.shape).astype(int)
        distance = np.abs(result.numpy() - expected)
        differing = np.mean(distance > LEVELS.get(name, 0))
        assert differing <= TIES.get(name, 0), magnitude


@pytest.mark.parametrize("name", ["AutoContrast", "Equalize", "Contrast"])
@pytest.mark.parametrize(
    "image",
    [
        np.full((20, 20, 3), 77, "uint8"),
        np.tile(np.array([3, 250], "uint8"), (20, 10))[..., None],
        pixels(3, low=0, high=255),
        pixels(3, low=100, high=103),
        pixels(1, size=(1, 300)),
    ],
    ids=["one level", "two levels", "all levels", "few", "a row"],
)
def test_statistics_of_special_images_are_those_of_pillow(name, image):
    result = RANDAUGMENT[name](tf.constant(image), 0.7, 1.0, PLACE)
    expected = np.asarray(PILLOW[name](to_pillow(image), 7))
    np.testing.assert_allclose(
        result.numpy().astype(int),
        expected.reshape(image.shape),
        atol=LEVELS.get(name, 0),
    )


@pytest.mark.parametrize("name", RANDAUGMENT)
def test_any_size(name):
    for size in ((1, 1), (1, 5), (3, 2)):
        image = tf.constant(pixels(3, size=size))
        result = RANDAUGMENT[name](image, 1, 1.0, PLACE)
        assert result.shape == image.shape


def apply_over_seeds(image, count, num_ops=1, magnitude=10):
    dataset = tf.data.Dataset.range(count).map(
        lambda i: apply_randaugment(
            tf.constant(image), tf.stack([np.int64(5), i]), num_ops, magnitude
        )
    )
    return np.stack(list(dataset.as_numpy_iterator()))


def test_each_operation_is_drawn_equally_often(monkeypatch):
    def paint(level):
        return lambda image, m, sign, place: image * 0 + level

    table = {name: paint(level) for level, name in enumerate(RANDAUGMENT)}
    monkeypatch.setattr(randaugment, "RANDAUGMENT", table)
    drawn = apply_over_seeds(np.zeros((1, 1, 1), "float32"), 3200).ravel()
    counts = np.bincount(drawn.astype(int), minlength=16)
    assert len(counts) == 16
    # Chi-squared with 15 degrees of freedom: beyond 37.7 once in a thousand.
    assert np.sum((counts - 200) ** 2 / 200) < 37.7


def test_signs_and_places_are_drawn_apart_from_each_other(monkeypatch):
    def paint(image, m, sign, place):
        levels = tf.stack([127.5 + 127.5 * sign, *tf.unstack(place * 255)])
        return image * 0 + tf.cast(levels, tf.uint8)

    table = dict.fromkeys(RANDAUGMENT, paint)
    monkeypatch.setattr(randaugment, "RANDAUGMENT", table)
    drawn = apply_over_seeds(np.zeros((1, 1, 3), "float32"), 1000)
    drawn = drawn.reshape(1000, 3)
    assert set(drawn[:, 0]) == {0, 255}
    assert np.abs(drawn.mean(0) - 127).max() < 20
    assert np.abs(drawn[:, 1:].std(0) - 255 / 12**0.5).max() < 5
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.12


def test_operations_follow_each_other_each_drawn_anew(monkeypatch):
    def add(level):
        return lambda image, m, sign, place: image + level

    table = {n: add(i % 2 + 1) for i, n in enumerate(RANDAUGMENT)}
    monkeypatch.setattr(randaugment, "RANDAUGMENT", table)
    image = np.zeros((1, 1, 1), "float32")
    sums = apply_over_seeds(image, 400, num_ops=3).ravel()
    counts = np.bincount(sums.astype(int), minlength=7)
    assert counts[:3].sum() == 0
    # Binomial: 1, 3, 3, 1 of 8.
    assert np.abs(counts[3:] - [50, 150, 150, 50]).max() < 40


def test_colours_are_rounded_first(monkeypatch):
    def keep(image, m, sign, place):
        return image

    monkeypatch.setattr(
        randaugment, "RANDAUGMENT", dict.fromkeys(RANDAUGMENT, keep)
    )
    image = np.array([-3, 0.4, 0.6, 254.7, 300], "float32").reshape(1, 5, 1)
    result = apply_randaugment(image, (0, 0), 1, 10)
    np.testing.assert_array_equal(np.ravel(result), [0, 0, 1, 255, 255])


def test_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"1 or 3 channels. .*\(4, 4, 2\)"):
        apply_randaugment(np.zeros((4, 4, 2), "float32"), (0, 0), 1, 1)
