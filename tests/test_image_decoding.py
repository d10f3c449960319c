import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.image_decoding import decode_image, decode_window, turn_upright
from tests import commands


def read_photo(encoded):
    return turn_upright(decode_image(encoded), encoded)


class TestTurned:
    def encode(self, exif=b"", form="JPEG"):
        """Return an image file with four different corners."""
        pixels = np.zeros((24, 40, 3), "uint8")
        pixels[:12, :20] = 250, 0, 0
        pixels[:12, 20:] = 0, 250, 0
        pixels[12:, :20] = 0, 0, 250
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, form, exif=exif, quality=95)
        return file.getvalue()

    def exif(self, order, entries, padding=b""):
        """Return Exif data with (tag, value) entries of 16 bits."""
        start = b"II*\0" if order == "<" else b"MM\0*"
        rows = [
            struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0)
            for tag, value in entries
        ]
        return b"".join(
            [
                b"Exif\0\0" + start,
                struct.pack(f"{order}I", 8 + len(padding)),
                padding,
                struct.pack(f"{order}H", len(rows)),
                *rows,
                bytes(4),
            ]
        )

    @pytest.mark.parametrize("order", "<>")
    @pytest.mark.parametrize("turn", range(1, 9))
    def test_are_turned_upright_as_pillow_does(self, order, turn):
        exif = self.exif(order, [(0x0100, 40), (0x0112, turn), (0x0128, 2)])
        encoded = self.encode(exif)
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
        found = read_photo(encoded).numpy()
        assert found.shape == np.shape(image)
        np.testing.assert_allclose(found, image, atol=12)

    @pytest.mark.parametrize(
        "exif",
        [
            b"",
            b"Exif\0\0",
            b"Exif\0\0II*\0",
            b"Exif\0\0II*\0\xff\xff\xff\xff",
            b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03",
        ],
    )
    def test_with_no_such_note(self, exif):
        want = read_photo(self.encode())
        np.testing.assert_array_equal(read_photo(self.encode(exif)), want)

    def test_with_a_list_further_on_and_values_that_are_none(self):
        want = read_photo(self.encode(self.exif(">", [(0x0112, 6)])))
        assert want.shape == (40, 24, 3)
        further = self.exif(">", [(0x0112, 6)], bytes(30))
        np.testing.assert_array_equal(read_photo(self.encode(further)), want)
        for value in (0, 9, 60_000):
            exif = self.exif("<", [(0x0112, value)])
            image = read_photo(self.encode(exif))
            assert image.shape == (24, 40, 3)

    def test_the_first_picture_of_an_animation(self):
        frames = [Image.new("RGB", (9, 7), shade) for shade in ("red", "blue")]
        file = io.BytesIO()
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
        image = read_photo(file.getvalue())
        np.testing.assert_array_equal(image, np.asarray(frames[0]))


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP"])
def test_each_lossless_kind_of_file_has_the_pixels_of_pillow(kind):
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), "uint8")
    image = Image.fromarray(pixels).quantize(256).convert("RGB")
    file = io.BytesIO()
    image.save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    np.testing.assert_array_equal(decode_image(file.getvalue()), image)


@pytest.mark.parametrize("mode, colours", [("L", 0), ("P", 5), ("P", 256)])
def test_a_bmp_has_the_colours_of_its_palette(mode, colours):
    """Also inside of a graph, where other files come the same way."""
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), "uint8")
    image = Image.fromarray(pixels)
    image = image.quantize(colours) if colours else image.convert(mode)
    file = io.BytesIO()
    image.save(file, "BMP")
    want = np.asarray(image.convert("RGB"))
    for decode in (decode_image, tf.function(decode_image)):
        np.testing.assert_array_equal(decode(file.getvalue()), want)


def encode(height, width, mode="RGB", **options):
    """Return a JPEG of coloured clouds."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (height // 9 + 2, width // 9 + 2, 3))
    image = Image.fromarray(pixels.astype("uint8")).resize((width, height))
    file = io.BytesIO()
    image.convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


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
    encoded = encode(*size, **options)
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

    part = decode_window(encode(20, 30), pick, channels=1)
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
from keras_vit.image_decoding import turn
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
