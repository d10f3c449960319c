"""Decoding image files, or windows of them, in a TensorFlow graph.

A served model decodes its images in the graph, so Pillow cannot be used. The
pixels are those of `read_image`: of an image with transparent pixels, the
colours that are stored; of one with several frames, the first.
"""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# The same pixels as in Pillow and in browsers. TensorFlow's default is as fast,
# and differs from them by one level on average.
JPEG_METHOD = "INTEGER_ACCURATE"
# Parts of red, green and blue in a grey level, of 65,536; as in Pillow.
LUMA = (19_595, 38_470, 7_471)
ORIENTATION = 0x0112  # Tag of Exif.
# The types of whole numbers in TIFF, by their bytes.
WHOLE_NUMBERS = {1: [6], 2: [3, 8], 4: [4, 9]}
MOST = 2**16  # Bytes of Exif data; a segment of a JPEG has no more.
NOTHING = ""


def decode_image(
    encoded: tf.Tensor,
    channels: int = 3,
    pixel_range: tuple[float, float] | None = None,
) -> tf.Tensor:
    """Return the pixels (H, W, C) of an image file, as they are stored.

    Reads JPEG, PNG, GIF, BMP and WebP, whatever the file is called. The first
    frame of several is returned, but an animated WebP is an error.

    Differs: the official ViT code decodes JPEG files with TensorFlow's default
        method, which is less accurate.

    Args:
        encoded: The bytes of the file.
        channels: Number of channels of the result: 3; 1 for grey; or 4 (PNG
            and BMP files only).
        pixel_range: The numbers that are black and white in a PNG of 16 bits.
            Default: 0 and 65535.
    """
    if channels == 4:
        if pixel_range is None:
            image = tf.io.decode_image(encoded, 4, expand_animations=False)
        else:
            image = decode_png(encoded, pixel_range, 4)
        return tf.ensure_shape(image, (None, None, 4))
    image = tf.case(
        [
            (
                is_jpeg(encoded),
                lambda: tf.io.decode_jpeg(encoded, 3, dct_method=JPEG_METHOD),
            ),
            (starts_with(encoded, b"BM"), lambda: decode_bmp(encoded)),
            (starts_with(encoded, b"GIF8"), lambda: decode_gif(encoded)),
            (is_webp(encoded), lambda: decode_webp(encoded)),
        ],
        lambda: decode_png(encoded, pixel_range),
    )
    image = tf.ensure_shape(image, (None, None, 3))
    if channels == 1:
        parts = tf.cast(image, tf.int32) * tf.constant(LUMA)
        grey = (tf.reduce_sum(parts, -1, keepdims=True) + 2**15) // 2**16
        image = tf.cast(grey, tf.uint8)
    return image


@functools.cache
def upright_decoder(
    channels: int, pixel_range: tuple[float, float] | None = None
) -> Callable:
    """Return `turn_upright` of `decode_image` as a graph, traced only once."""

    def decode(encoded):
        image = decode_image(encoded, channels, pixel_range)
        return turn_upright(image, encoded)

    with tf.init_scope():  # Not within the graph of a caller.
        graph = tf.function(decode, autograph=False)
        return graph.get_concrete_function(tf.TensorSpec((), tf.string))


def take(encoded: tf.Tensor, place: int, length: int) -> tf.Tensor:
    """Return the bytes from a place on, fewer or none beyond the end."""
    place = tf.minimum(place, tf.strings.length(encoded))
    return tf.strings.substr(encoded, place, length)


def starts_with(encoded: tf.Tensor, start: bytes, place: int = 0) -> tf.Tensor:
    """Return whether the bytes at a place are the given ones."""
    return take(encoded, place, len(start)) == start


def is_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file starts like a JPEG."""
    return starts_with(encoded, JPEG_START)


def is_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file starts like a WebP."""
    return starts_with(encoded, b"RIFF") & starts_with(encoded, b"WEBP", 8)


def decode_png(
    encoded: tf.Tensor,
    pixel_range: tuple[float, float] | None,
    channels: int = 3,
) -> tf.Tensor:
    """Return the pixels (H, W, channels) of a PNG; see `decode_image`.

    Byte 24 of the file are the bits of a number.
    """
    if pixel_range is None:
        return tf.io.decode_png(encoded, channels)

    def scale():
        # As `scale_pixels` of `image_files`.
        low, high = map(np.float32, pixel_range)
        pixels = tf.io.decode_png(encoded, channels, tf.uint16)
        shares = (tf.cast(pixels, tf.float32) - low) / (high - low)
        shares = tf.clip_by_value(shares, 0.0, 1.0)
        return tf.cast(tf.round(shares * 255), tf.uint8)

    is_deep = starts_with(encoded, b"\x10", 24)
    return tf.cond(is_deep, scale, lambda: tf.io.decode_png(encoded, channels))


def decode_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels (H, W, 3) of a WebP, without those of transparency.

    Of an animation, TensorFlow would end the process.
    """
    # The first chunk of extended files; bit 1 of its flags is the animation.
    is_extended = starts_with(encoded, b"VP8X", 12)
    flags = bytes_of(take(encoded, 20, 1), 1)[0]
    is_animated = is_extended & (flags & 2 > 0)
    check = tf.debugging.Assert(~is_animated, ["an animated WebP"])
    with tf.control_dependencies([check] if check is not None else []):
        image = tf.io.decode_image(encoded, 0, expand_animations=False)
    return tf.ensure_shape(image, (None, None, None))[..., :3]


def decode_bmp(encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels (H, W, 3) of a BMP, with the colours of its palette.

    TensorFlow decodes the indices into the palette as grey levels. Bytes
    10 to 13 of the file are the offset of the pixels, 14 to 17 the length of
    the header that begins there, 28 and 29 the bits of a pixel. The colours
    follow the header, 4 bytes each, blue first.
    """
    image = tf.ensure_shape(tf.io.decode_bmp(encoded), (None, None, None))

    def read(place, kind):
        part = take(encoded, place, kind.size)
        return tf.cast(tf.io.decode_raw(part, kind)[0], tf.int32)

    def look_up():
        start = 14 + read(14, tf.int32)
        colours = take(encoded, start, read(10, tf.int32) - start)
        colours = tf.reshape(tf.io.decode_raw(colours, tf.uint8), (-1, 4))
        return tf.gather(colours[:, 2::-1], tf.cast(image[..., 0], tf.int32))

    has_palette = read(28, tf.uint16) == 8
    return tf.cond(has_palette, look_up, lambda: image[..., :3])


def decode_gif(encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels (H, W, 3) of the first frame of a GIF.

    TensorFlow makes the pixels black that are transparent or outside of the
    frame. Here, they have the stored colour, and the transparent or the first
    colour.

    A GIF has the size of the screen in bytes 6 to 9, flags in byte 10, and a
    palette of colours from byte 13 on. Then come extensions, of which one
    states the transparent colour, and the frame: its place and size, flags,
    and perhaps a palette of its own.

    Reference: GIF89a, sections 18, 20 and 23.
    """
    data = bytes_of(encoded)

    def palette_size(flags):
        return tf.where(flags & 128 > 0, 3 * 2 ** (flags % 8 + 1), 0)

    def skip(place, control):
        """Skip an extension: two bytes, and parts that begin with a length."""
        control = tf.where(data[place + 1] == 0xF9, place + 3, control)
        (end,) = tf.while_loop(
            lambda place: data[place] > 0,
            lambda place: (place + data[place] + 1,),
            (place + 2,),
        )
        return end + 1, control

    none = tf.constant(0)
    frame, control = tf.while_loop(
        lambda place, control: data[place] == 0x21,
        skip,
        (13 + palette_size(data[10]), none),
    )  # The places of the frame and of the flags of its extension.
    sizes = data[frame + 1 : frame + 9]
    left, top, width, height = tf.unstack(sizes[::2] + 256 * sizes[1::2], 4)
    columns, rows = tf.unstack(data[6:9:2] + 256 * data[7:10:2], 2)

    def part(first, last):
        return take(encoded, first, last - first)

    # The frame as an opaque picture of its own.
    between = tf.cond(
        control > 0,
        lambda: part(10, control) + b"\0" + part(control + 1, frame + 1),
        lambda: part(10, frame + 1),
    )
    whole = [part(0, 6), part(frame + 5, frame + 9), between, b"\0\0\0\0"]
    whole = tf.strings.join([*whole, part(frame + 5, tf.size(data))])
    image = tf.io.decode_image(whole, 3, expand_animations=False)
    is_transparent = (control > 0) & (data[control] % 2 > 0)
    index = tf.where(
        is_transparent, data[tf.where(control > 0, control + 3, 0)], 0
    )
    palette = tf.where(data[frame + 9] & 128 > 0, frame + 10, 13)
    colour = tf.cast(data[palette + 3 * index :][:3], tf.uint8)
    below = tf.maximum(rows - top - height, 0)
    beside = tf.maximum(columns - left - width, 0)
    border = [[top, below], [left, beside], [0, 0]]
    is_inside = tf.pad(tf.ones_like(image, tf.bool), border)
    return tf.where(is_inside, tf.pad(image, border), colour)


def bytes_of(encoded: tf.Tensor, length: int | None = None) -> tf.Tensor:
    """Return the bytes of a string as integers, with zeros up to a length."""
    data = tf.io.decode_raw(encoded, tf.uint8, fixed_length=length)
    return tf.cast(data, tf.int32)


def decode_window(
    encoded: tf.Tensor, pick_window: Callable, channels: int
) -> tf.Tensor:
    """Return a window of the pixels of a JPEG, decoding only the window.

    Args:
        encoded: The bytes of the file.
        pick_window: Takes the shape (3,) of the image; returns top, left,
            height and width of the window.
        channels: Number of channels of the result.
    """
    # TensorFlow's own error would also be printed for each image.
    check = tf.debugging.Assert(is_jpeg(encoded), ["no JPEG"])
    with tf.control_dependencies([check] if check is not None else []):
        shape = tf.io.extract_jpeg_shape(encoded)
    start, size = tf.split(pick_window(shape), 2)
    # The colour of a column is blended with that of its neighbours.
    first = tf.maximum(start - 1, 0)
    last = tf.minimum(start + size + 1, shape[:2])
    image = tf.io.decode_and_crop_jpeg(
        encoded,
        tf.concat([first, last - first], 0),
        channels,
        dct_method=JPEG_METHOD,
    )
    return cut_window(image, tf.concat([start - first, size], 0))


def cut_window(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Return the pixels of a window: its top, left, height and width."""
    part = tf.slice(
        image,
        tf.concat([window[:2], [0]], 0),
        tf.concat([window[2:], [image.shape[-1]]], 0),
    )
    return tf.ensure_shape(part, (None, None, image.shape[-1]))


def turn_upright(image: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    """Return the image (H, W, C) or (W, H, C), turned upright.

    Phones store photos in the orientation of the sensor; the Exif data of a
    JPEG, PNG or WebP, or else its XMP data, state how to turn them.

    Args:
        image: Pixels (H, W, C), as they are stored.
        encoded: The bytes of the file.
    """

    def metadata_of_png():
        return split_after(encoded, "eXIf"), encoded

    def metadata_of_webp():
        # Behind the name of the chunk comes its length.
        return take(split_after(encoded, "EXIF"), 4, MOST), encoded

    exif, xmp = tf.case(
        [
            (is_jpeg(encoded), lambda: metadata_of_jpeg(encoded)),
            (starts_with(encoded, b"\x89PNG"), metadata_of_png),
            (is_webp(encoded), metadata_of_webp),
        ],
        lambda: (NOTHING, NOTHING),
    )
    exif = tf.cond(
        starts_with(exif, b"Exif\0\0"),
        lambda: take(exif, 6, MOST),
        lambda: exif,
    )
    turns = tf.concat([read_exif(exif), read_xmp(xmp), [1]], 0)
    return turn(image, tf.where(turns[0] <= 8, turns[0], 1))


def split_after(encoded: tf.Tensor, word: str) -> tf.Tensor:
    """Return what follows the first place of a word; nothing without it."""
    parts = tf.raw_ops.StringSplitV2(
        input=tf.reshape(encoded, (1,)), sep=word, maxsplit=1
    ).values
    return tf.concat([parts, [NOTHING]], 0)[1]


def metadata_of_jpeg(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the Exif and XMP data of a JPEG; empty if there are none.

    A JPEG consists of segments: 0xFF, a marker, and the length of what follows
    (2 bytes, itself included). They end with the marker 0xDA, before the
    pixels.

    Reference: Exif 2.32, section 4.5; ITU-T T.81, annex B.
    """

    def read_segment(place, exif, xmp):
        head = bytes_of(take(encoded, place, 4), 4)
        size = tf.maximum(256 * head[2] + head[3], 2)
        content = take(encoded, place + 4, size - 2)
        is_app1, is_filler = head[1] == 0xE1, head[1] == 0xFF
        is_exif = is_app1 & starts_with(content, b"Exif\0\0")
        is_exif &= tf.strings.length(exif) == 0
        is_xmp = is_app1 & starts_with(content, b"http://ns.adobe.com/xap/")
        is_end = (head[0] != 0xFF) | (head[1] == 0xDA)
        place += tf.where(is_filler, 1, 2 + size)
        return (
            tf.where(is_end, tf.strings.length(encoded), place),
            tf.where(is_exif, content, exif),
            tf.where(is_xmp, content, xmp),
        )

    _, exif, xmp = tf.while_loop(
        lambda place, exif, xmp: place < tf.strings.length(encoded),
        read_segment,
        (tf.constant(2), NOTHING, NOTHING),
    )
    return exif, xmp


def read_exif(exif: tf.Tensor) -> tf.Tensor:
    """Return the orientation of a picture, from 1 (upright) to 8.

    Exif data are a TIFF file: the byte order ("II" or "MM"), the number 42
    and the offset of a list of entries (4 bytes). The list begins with their
    number. An entry has 12 bytes: tag, type, count and value.

    Shapes:
        returns: (1,), or (0,) if nothing is stated.

    Args:
        exif: The data, without "Exif"; they may be cut off.

    Reference: Exif 2.32, section 4.6; TIFF 6.0, section 2.
    """
    data = bytes_of(take(exif, 0, MOST))
    data = tf.concat([data, [0] * 16], 0)
    is_little = data[0] == 0x49

    def number(places, size):
        """Return the numbers of 2 or 4 bytes at some places."""
        places = tf.minimum(
            places[..., None] + tf.range(size), tf.size(data) - 1
        )
        digits = tf.gather(data, places)
        digits = tf.where(is_little, digits[..., ::-1], digits)
        return tf.reduce_sum(digits * 256 ** tf.range(size)[::-1], -1)

    is_tiff = tf.reduce_any(
        [starts_with(exif, start) for start in (b"II*\0", b"MM\0*")]
    )
    first = number(tf.constant(4), 4)
    count = tf.where(is_tiff & (first >= 8), number(first, 2), 0)
    entries = first + 2 + 12 * tf.range(count)
    entries = tf.boolean_mask(
        entries, (entries > 0) & (entries < tf.size(data) - 16)
    )
    entries = tf.boolean_mask(entries, number(entries, 2) == ORIENTATION)[-1:]
    kinds, values = number(entries + 2, 2), tf.ones_like(entries)
    for size, types in WHOLE_NUMBERS.items():
        is_one = tf.reduce_any(kinds[:, None] == types, -1)
        values = tf.where(is_one, number(entries + 8, size), values)
    return values


def read_xmp(xmp: tf.Tensor) -> tf.Tensor:
    """Return the orientation that XMP data state, (1,), or (0,) without one.

    Reference: XMP specification, part 2, section 3.7 (tiff:Orientation).
    """
    rest = bytes_of(split_after(xmp, "tiff:Orientation"), 3)
    is_attribute = tf.reduce_all(rest[:2] == [*b'="'])
    digit = tf.where(
        is_attribute, rest[2], tf.where(rest[0] == ord(">"), rest[1], 0)
    )
    digit -= ord("0")
    return tf.boolean_mask(digit[None], ((0 <= digit) & (digit <= 9))[None])


def turn(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Return the image of an orientation, see `read_exif`, turned upright."""

    def is_one_of(*numbers):
        return tf.reduce_any(orientation == tf.constant(numbers))

    def flip():
        flips = tf.stack([is_one_of(3, 4), is_one_of(2, 3), False])
        return tf.raw_ops.Reverse(tensor=image, dims=flips)

    def transpose():
        # Nearly as fast as `tf.transpose`. About that of integers, oneDNN
        # complains on the standard error.
        height, width, channels = tf.unstack(tf.shape(image))
        rows, columns = tf.range(height) * width, tf.range(width)
        rows = tf.cond(is_one_of(6, 7), lambda: rows[::-1], lambda: rows)
        columns = tf.cond(
            is_one_of(7, 8), lambda: columns[::-1], lambda: columns
        )
        pixels = tf.reshape(image, (-1, channels))
        return tf.gather(pixels, columns[:, None] + rows)  # (W, H, C)

    return tf.cond(orientation >= 5, transpose, flip)
