import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.decoding import (
    decode_image,
    decode_window,
    upright_decoder,
)
from tests import commands, pictures
from tests.pictures import encode


def read_colours(encoded):
    return upright_decoder(3)(tf.constant(encoded))


@pytest.mark.parametrize("name", pictures.COMMON)
def test_the_pixels_are_those_of_pillow(name):
    """To the bit: upright, with the colours of transparent pixels."""
    encoded = pictures.COMMON[name]
    for channels in (3, 1):
        want = read_image(io.BytesIO(encoded), channels)
        found = upright_decoder(channels)(tf.constant(encoded))
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", pictures.OTHER | pictures.UNREADABLE)
def test_other_files_are_errors(name):
    """Not other pixels, and not the end of the process."""
    with pytest.raises(tf.errors.OpError):
        read_colours((pictures.OTHER | pictures.UNREADABLE)[name])


@pytest.mark.parametrize("turn", range(1, 9))
def test_photos_are_turned_as_pillow_turns_them(turn):
    encoded = pictures.COMMON[f"turn_{turn}<.jpg"]
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    np.testing.assert_array_equal(read_colours(encoded), image)


def clouds(height, width, mode="RGB", **options):
    """Return a JPEG of coloured clouds."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (height // 9 + 2, width // 9 + 2, 3))
    image = Image.fromarray(pixels.astype("uint8")).resize((width, height))
    return encode(image.convert(mode), "JPEG", **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2", "quality": 30},
        {"progressive": True},
        {"mode": "L"},
        {"mode": "CMYK"},
    ],
    ids=str,
)
def test_a_window_has_the_pixels_of_the_whole(options):
    """To the bit, also where colours of neighbouring blocks are blended."""
    size = np.array([75, 107])
    encoded = clouds(*size, **options)
    whole = decode_image(encoded).numpy()
    random = np.random.default_rng(1)
    windows = [(0, 0, *size), (74, 106, 1, 1), (3, 16, 40, 32)]
    for _ in range(100):
        sides = random.integers(1, size + 1)
        windows.append((*random.integers(0, size - sides + 1), *sides))
    for window in windows:
        part = decode_window(
            encoded, lambda _, window=window: tf.constant(window, tf.int32), 3
        )
        top, left, height, width = window
        want = whole[top : top + height, left : left + width]
        np.testing.assert_array_equal(part, want)


def test_a_window_is_picked_by_the_shape():
    shapes = []

    def pick(shape):
        shapes.append(shape.numpy().tolist())
        return tf.concat([[0, 0], shape[:2]], 0)

    part = decode_window(clouds(20, 30), pick, channels=1)
    assert shapes == [[20, 30, 3]]
    assert part.shape == (20, 30, 1)


def test_what_is_no_jpeg_has_no_window(capfd):
    """And the decoder does not print that for each image."""
    encoded = tf.io.encode_png(np.zeros((4, 4, 3), "uint8"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="no JPEG"):
        decode_window(encoded, lambda shape: tf.constant([0, 0, 1, 1]), 3)
    assert "JPEG" not in capfd.readouterr().err


TURN = """
import tensorflow as tf
from keras_vit.preprocessing.decoding import turn
image = tf.zeros((2, 3, 3), tf.uint8)
print(tf.function(turn)(image, tf.constant(6)).shape)
"""


@pytest.mark.slow
def test_turning_is_silent(subprocess_environment):
    """OneDNN does not complain about integers, once in each process."""
    result = commands.run_anew(
        ["-c", TURN], {**subprocess_environment, "TF_CPP_MIN_LOG_LEVEL": "2"}
    )
    assert not result.returncode, result.stderr
    assert result.stdout == "(3, 2, 3)\n"
    assert "AVX" not in result.stderr
