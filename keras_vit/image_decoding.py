"""Decoding image files, or windows of them, in a TensorFlow graph.

A served model decodes its images in the graph, so Pillow cannot be used.
"""

from collections.abc import Callable

import tensorflow as tf

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# The same pixels as in Pillow and in browsers. TensorFlow's default is as fast,
# and differs from them by one level on average.
JPEG_METHOD = "INTEGER_ACCURATE"


def decode_image(encoded: tf.Tensor, channels: int = 3) -> tf.Tensor:
    """Return the pixels (H, W, C) of an image file, as they are stored.

    If the file has several frames, the first one is returned.

    Differs: the official ViT code decodes JPEG files with TensorFlow's default
        method, which is less accurate.

    Args:
        encoded: The bytes of the file.
        channels: Number of channels of the result: 3; 1 for grey (JPEG and
            PNG files only); or 4 (PNG and BMP files only).
    """

    def decode():
        return tf.io.decode_image(encoded, channels, expand_animations=False)

    if channels == 4:
        image = decode()
    else:
        image = tf.cond(
            is_jpeg(encoded),
            lambda: tf.io.decode_jpeg(
                encoded, channels, dct_method=JPEG_METHOD
            ),
            decode,
        )
    if channels == 3:
        image = tf.cond(
            tf.strings.substr(encoded, 0, 2) == b"BM",
            lambda: look_up_colours(image, encoded),
            lambda: image,
        )
    return tf.ensure_shape(image, (None, None, channels))


def look_up_colours(image: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels of a BMP file with the colours of its palette, if any.

    TensorFlow decodes the indices into the palette as grey levels. Bytes
    10 to 13 of the file are the offset of the pixels, 14 to 17 the length of
    the header that begins there, 28 and 29 the bits of a pixel. The colours
    follow the header, 4 bytes each, blue first.

    Args:
        image: Pixels (H, W, 3), as TensorFlow decodes them.
        encoded: The bytes of the file.
    """

    def read(place, kind):
        part = tf.strings.substr(encoded, place, kind.size)
        return tf.cast(tf.io.decode_raw(part, kind)[0], tf.int32)

    def look_up():
        start = 14 + read(14, tf.int32)
        colours = tf.strings.substr(encoded, start, read(10, tf.int32) - start)
        colours = tf.reshape(tf.io.decode_raw(colours, tf.uint8), (-1, 4))
        return tf.gather(colours[:, 2::-1], tf.cast(image[..., 0], tf.int32))

    return tf.cond(read(28, tf.uint16) == 8, look_up, lambda: image)


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
    """Return the pixels (height, width, C) of a window.

    Args:
        image: Pixels (H, W, C).
        window: Top, left, height and width of the window.
    """
    part = tf.slice(
        image,
        tf.concat([window[:2], [0]], 0),
        tf.concat([window[2:], [image.shape[-1]]], 0),
    )
    return tf.ensure_shape(part, (None, None, image.shape[-1]))


def is_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether a file starts like a JPEG."""
    return tf.strings.substr(encoded, 0, 2) == JPEG_START


def turn_upright(image: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    """Return the image (H, W, C) or (W, H, C), turned upright.

    Phones store photos in the orientation of the sensor; the Exif data of the
    file state how to turn them.

    Args:
        image: Pixels (H, W, C), as they are stored.
        encoded: The bytes of the file.
    """
    # In a JPEG, the Exif data come first.
    parts = tf.raw_ops.StringSplitV2(
        input=tf.strings.substr(encoded, 0, 4096)[None],
        sep="Exif\0\0",
        maxsplit=1,
    ).values
    return tf.cond(
        is_jpeg(encoded) & (tf.size(parts) > 1),
        lambda: turn(image, read_orientation(parts[-1])),
        lambda: image,
    )


def read_orientation(exif: tf.Tensor) -> tf.Tensor:
    """Return the orientation of a picture, from 1 (upright) to 8.

    Exif data are a TIFF file: the byte order ("II" or "MM"), the number 42
    and the offset of a list of entries (4 bytes). The list begins with their
    number. An entry has 12 bytes: tag, type, count and value.

    Args:
        exif: The bytes that follow "Exif" in the file; may be cut off.

    Reference: Exif 2.32, section 4.6; TIFF 6.0, section 2.
    """
    exif = tf.strings.substr(exif, 0, tf.strings.length(exif) // 2 * 2)
    is_little = tf.strings.substr(exif, 0, 2) == b"II"
    words = tf.where(
        is_little,
        tf.io.decode_raw(exif, tf.uint16, little_endian=True),
        tf.io.decode_raw(exif, tf.uint16, little_endian=False),
    )
    words = tf.cast(tf.concat([words, [0] * 4], 0), tf.int32)
    place = tf.where(is_little, words[2], words[3]) // 2
    count = words[tf.minimum(place, tf.size(words) - 1)]
    entries = words[place + 1 :][: 6 * count]
    entries = tf.reshape(entries[: tf.size(entries) // 6 * 6], (-1, 6))
    turns = tf.boolean_mask(entries[:, 4], entries[:, 0] == 0x0112)
    turn = tf.reduce_max(tf.concat([turns, [1]], 0))
    return tf.where(turn <= 8, turn, 1)


def turn(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Return the image (H, W, C) or (W, H, C), turned upright.

    Args:
        image: Pixels (H, W, C).
        orientation: See `read_orientation`.
    """

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
