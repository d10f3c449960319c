"""RandAugment with the sixteen operations of the official ViT code.

Each operation takes and returns an image (H, W, C) of type uint8, with one or
three channels. Fractional levels are rounded down, as in Pillow.

TensorFlow is slow at `tf.where`, and at broadcasting along the channels: the
operations do without both.
"""

import functools
import math

import tensorflow as tf

from trainers.augment.parser import require


def flip_lr():
    """Mirror half of the images from left to right."""

    def flip(image, seed):
        return tf.image.stateless_random_flip_left_right(image, seed)

    flip.on_maps = flip
    return flip


def affine(degrees: float, shift: float, scale: float):
    """Rotate and zoom the image about its centre and shift it, at random.

    Empty space is filled with zeros.

    Args:
        degrees: Largest rotation, in either direction.
        shift: Largest shift along each axis, as a share of the size.
        scale: Largest change of the scale: 0.1 zooms by 0.9 to 1.1.
    """
    require(degrees >= 0, "degrees", "0 or more", degrees)
    require(shift >= 0, "shift", "0 or more", shift)
    require(0 <= scale < 1, "scale", "in [0, 1)", scale)

    def transform(image, seed, fill=0.0, method="BILINEAR"):
        draw = tf.random.stateless_uniform((4,), seed, -1.0, 1.0)
        height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
        angle = draw[0] * degrees * math.pi / 180
        zoom = 1.0 / (1.0 + draw[1] * scale)
        cos, sin = tf.cos(angle) * zoom, tf.sin(angle) * zoom
        # Maps a pixel of the result to a pixel of the source.
        x, y = (width - 1) / 2, (height - 1) / 2
        matrix = [
            cos,
            -sin,
            x - cos * x + sin * y + draw[2] * shift * width,
            sin,
            cos,
            y - sin * x - cos * y + draw[3] * shift * height,
            0.0,
            0.0,
        ]
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=image[None],
            transforms=tf.stack(matrix)[None],
            output_shape=tf.shape(image)[:2],
            fill_value=fill,
            interpolation=method,
            fill_mode="CONSTANT",
        )[0]

    transform.on_maps = functools.partial(
        transform, fill=float("nan"), method="NEAREST"
    )
    return transform


GEOMETRY = {"affine": affine, "flip_lr": flip_lr}


GREY = 128  # Fills the empty space of a moved image.


def apply_randaugment(image, seed, num_ops: int, magnitude: float):
    """Apply `num_ops` random operations, each drawn from all sixteen.

    The identity is not among them, and every drawn operation is applied. A
    magnitude of 0 still changes the image: Brightness keeps a tenth of the
    light, Posterize makes the image black, and Solarize inverts it.

    Shapes:
        image: (H, W, C), floats from 0 to 255; they are rounded.
        seed: (2,), integers.
        returns: (H, W, C), whole floats from 0 to 255.

    Args:
        image: The image to change, with one or three channels.
        seed: Seed of all random numbers.
        num_ops: Number of operations, applied one after the other.
        magnitude: Strength of all operations. 10 is the highest level of the
            paper; higher values are allowed.

    Raises:
        ValueError: If the image has another number of channels than 1 or 3.

    Reference: Cubuk et al. 2019, arXiv:1909.13719; operations and magnitudes
        as in the official code of Beyer et al. 2022, arXiv:2205.01580.
    Differs: In the official code, Contrast blends with the number of pixels
        / 256 instead of the mean, and the threshold of a Solarize of
        magnitude 10 or more does not fit its type, uint8. Here Contrast uses
        the mean, and such a Solarize changes nothing. Sharpness rounds
        smoothed levels to the nearest, as Pillow does, not down.
    """
    if image.shape[-1] not in (1, 3):
        raise ValueError(
            "`randaugment` takes images of 1 or 3 channels; leave it out of "
            f"`augment` for others. Received: an image of shape {image.shape}"
        )
    image = tf.saturate_cast(tf.round(image), tf.uint8)
    image = _apply_drawn(image, seed, num_ops, magnitude, RANDAUGMENT)
    return tf.cast(image, tf.float32)


def _apply_drawn(image, seed, num_ops, magnitude, operations):
    """Return an image after `num_ops` operations of the table."""
    shape = image.shape

    def step(index, image):
        draw = tf.random.stateless_uniform((4,), tf.random.fold_in(seed, index))
        choice = tf.cast(draw[0] * len(operations), tf.int32)
        sign = tf.where(draw[1] < 0.5, -1.0, 1.0)
        branches = [
            functools.partial(operation, image, magnitude / 10, sign, draw[2:])
            for operation in operations.values()
        ]
        image = tf.switch_case(choice, branches)
        return index + 1, tf.ensure_shape(image, shape)

    # A loop, because tracing a separate graph for each step takes long.
    _, image = tf.while_loop(
        lambda index, image: index < num_ops, step, (0, image)
    )
    return image


def auto_contrast(image):
    """Stretch the levels of each channel to the range from 0 to 255."""
    values = tf.cast(image, tf.float32)
    low = tf.reduce_min(tf.reduce_min(values, 0), 0)  # Faster than both axes.
    span = tf.reduce_max(tf.reduce_max(values, 0), 0) - low
    # A channel with a single level stays unchanged.
    low, span = tf.where(span > 0, low, 0), tf.where(span > 0, span, 255)
    # 255 (value - low) / span. Adding 0.5 / span protects whole quotients
    # from rounding errors, and never reaches the next level.
    height, width = tf.unstack(tf.shape(image)[:2])
    factor, shift = (
        tf.tile(x, [width]) for x in (255 / span, (0.5 - 255 * low) / span)
    )
    stretched = tf.reshape(values, (height, -1)) * factor + shift
    return tf.reshape(tf.cast(stretched, tf.uint8), tf.shape(image))


def equalize(image):
    """Equalise the histogram of each channel."""
    channels = image.shape[-1]
    places = tf.cast(image, tf.int32) + 256 * tf.range(channels)
    counts = tf.math.bincount(
        tf.reshape(places, (-1,)), minlength=256 * channels
    )
    counts = tf.reshape(counts, (channels, 256))
    # The pixels below the highest level are spread over 255 steps.
    highest = tf.reduce_max(tf.cast(image, tf.int32), (0, 1))
    last = tf.gather(counts, highest, batch_dims=1)
    step = (tf.reduce_sum(counts, 1) - last) // 255
    step = step[:, None]
    below = tf.cumsum(counts, 1, exclusive=True)
    levels = (below + step // 2) // tf.maximum(step, 1)
    levels = tf.where(step > 0, tf.minimum(levels, 255), tf.range(256))
    return tf.gather(tf.reshape(tf.cast(levels, tf.uint8), (-1,)), places)


def invert(image):
    """Return the negative."""
    return 255 - image


def posterize(image, bits: int):
    """Keep the highest `bits` bits of each level; 8 or more change nothing."""
    dropped = 2 ** (8 - min(bits, 8))
    return tf.bitwise.bitwise_and(image, tf.constant(256 - dropped, tf.uint8))


def solarize(image, threshold: int):
    """Invert the levels from `threshold` on; 256 or more change nothing."""
    if threshold > 255:
        return image
    # The bits of 255 - level are those of the level, inverted.
    return tf.bitwise.bitwise_xor(image, 255 * _mask(image >= threshold))


def solarize_add(image, addition: int):
    """Add to the levels below 128, and clip the sum at 255."""
    added = tf.minimum(255 - image, min(addition, 255))
    return image + added * _mask(image < 128)


def adjust_color(image, factor: float):
    """Blend with the grey image: 0 removes the colour, 2 doubles it."""
    return _blend(_to_grey(image, image.shape[-1]), image, factor)


def adjust_contrast(image, factor: float):
    """Blend with the mean grey level."""
    mean = tf.floor(tf.reduce_mean(_to_grey(image)) + 0.5)
    return _blend(mean, image, factor)


def adjust_sharpness(image, factor: float):
    """Blend with a smoothed image; pixels on the border stay unchanged."""
    values = tf.pad(tf.cast(image, tf.float32), [[1, 1], [1, 1], [0, 0]])
    rows = values[:-2] + values[1:-1] + values[2:]
    box = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    values = values[1:-1, 1:-1]
    # A weighted mean of 3 x 3 pixels: the middle one has weight 5.
    smooth = tf.floor((box + 4 * values) / 13 + 0.5)
    height, width, channels = tf.unstack(tf.shape(image))
    rows, columns = (
        tf.cast((0 < place) & (place < last), tf.float32)
        for place, last in (
            (tf.range(height), height - 1),
            (tf.range(width), width - 1),
        )
    )
    inside = rows[:, None] * tf.repeat(columns, channels)
    # Whole numbers, so that this is exact.
    change = tf.reshape(smooth - values, (height, -1)) * inside
    smooth = values + tf.reshape(change, tf.shape(image))
    return _blend(smooth, image, factor)


def rotate(image, degrees: float):
    """Rotate about the centre."""
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
    angle = degrees * math.pi / 180
    cos, sin = tf.cos(angle), tf.sin(angle)
    x, y = (width - 1) / 2, (height - 1) / 2
    return _move(
        image,
        (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y),
    )


def cutout(image, half: int, place):
    """Fill a square with grey; a part of it may be outside of the image.

    Args:
        image: The image to change.
        half: Half the side of the square, in pixels.
        place: (2,), floats in [0, 1): the centre, relative to the image.
    """
    size = tf.shape(image)[:2]
    centre = tf.cast(place * tf.cast(size, tf.float32), tf.int32)
    rows, columns = (
        _mask((-half <= place) & (place < half))
        for place in (
            tf.range(n) - c for n, c in zip(*map(tf.unstack, (size, centre)))
        )
    )
    columns = tf.repeat(columns, image.shape[-1])
    inside = rows[:, None] * columns
    flat = tf.reshape(image, (size[0], -1))
    flat = flat * (1 - inside) + GREY * inside
    return tf.reshape(flat, tf.shape(image))


def _mask(where):
    """Return 1 for True and 0 for False."""
    return tf.cast(where, tf.uint8)


def _to_grey(image, copies: int = 1):
    """Return the grey levels (H, W, copies) as floats, rounded as in Pillow."""
    values = tf.cast(image, tf.float32)
    if image.shape[-1] == 1:
        return values
    # The weights of ITU-R 601 in units of 2 ** -16; the sum fits float32.
    weights = tf.constant(copies * [[19595.0, 38470.0, 7471.0]])
    values = tf.matmul(tf.reshape(values, (-1, 3)), weights, transpose_b=True)
    grey = tf.floor(values / 65536 + 0.5)
    return tf.reshape(grey, (*tf.unstack(tf.shape(image)[:2]), copies))


def _blend(zero, image, factor):
    """Interpolate from `zero` (factor 0) to `image` (factor 1) and beyond."""
    blended = zero + factor * (tf.cast(image, tf.float32) - zero)
    return tf.cast(tf.clip_by_value(blended, 0.0, 255.0), tf.uint8)


def _move(image, matrix):
    """Transform an image; empty space becomes grey, of a map unknown.

    The pixel (x, y) of the result is the nearest pixel of the image to
    (a x + b y + c, d x + e y + f). The centre of the upper left pixel is
    (0, 0).
    """
    height, width, channels = tf.unstack(tf.shape(image))
    x = tf.range(tf.cast(width, tf.float32))
    y = tf.range(tf.cast(height, tf.float32))[:, None]
    a, b, c, d, e, f = matrix
    # A gather is faster than ImageProjectiveTransformV3.
    column, row = _round(a * x + b * y + c), _round(d * x + e * y + f)
    is_inside = (0 <= row) & (row < height) & (0 <= column) & (column < width)
    # Behind the pixels, there is the one that fills the empty space.
    outside = height * width
    place = tf.cast(is_inside, tf.int32) * (row * width + column - outside)
    fill = float("nan") if image.dtype.is_floating else GREY
    filling = tf.fill((1, channels), tf.constant(fill, image.dtype))
    pixels = tf.concat([tf.reshape(image, (-1, channels)), filling], 0)
    return tf.gather(pixels, place + outside)


def _round(x):
    """Return the nearest whole numbers, of halves those farther from 0."""
    whole = tf.cast(x, tf.int32)
    rest = x - tf.cast(whole, tf.float32)
    up, down = (tf.cast(r, tf.int32) for r in (rest >= 0.5, rest <= -0.5))
    return whole + up - down


# Each function takes the image, m = magnitude / 10, a random sign and a random
# place.
RANDAUGMENT = {
    "AutoContrast": lambda image, m, sign, place: auto_contrast(image),
    "Equalize": lambda image, m, sign, place: equalize(image),
    "Invert": lambda image, m, sign, place: invert(image),
    "Rotate": lambda image, m, sign, place: rotate(image, sign * 30 * m),
    "Posterize": lambda image, m, sign, place: posterize(image, int(4 * m)),
    "Solarize": lambda image, m, sign, place: solarize(image, int(256 * m)),
    "Color": lambda image, m, sign, place: adjust_color(image, 0.1 + 1.8 * m),
    "Contrast": lambda image, m, sign, place: adjust_contrast(
        image, 0.1 + 1.8 * m
    ),
    "Brightness": lambda image, m, sign, place: _blend(  # With black.
        0.0, image, 0.1 + 1.8 * m
    ),
    "Sharpness": lambda image, m, sign, place: adjust_sharpness(
        image, 0.1 + 1.8 * m
    ),
    # Each row is shifted more than the row above it, or each column.
    "ShearX": lambda image, m, sign, place: _move(
        image, (1.0, sign * 0.3 * m, 0.0, 0.0, 1.0, 0.0)
    ),
    "ShearY": lambda image, m, sign, place: _move(
        image, (1.0, 0.0, 0.0, sign * 0.3 * m, 1.0, 0.0)
    ),
    # To the left, and up.
    "TranslateX": lambda image, m, sign, place: _move(
        image, (1.0, 0.0, sign * 100 * m, 0.0, 1.0, 0.0)
    ),
    "TranslateY": lambda image, m, sign, place: _move(
        image, (1.0, 0.0, 0.0, 0.0, 1.0, sign * 100 * m)
    ),
    "Cutout": lambda image, m, sign, place: cutout(image, int(40 * m), place),
    "SolarizeAdd": lambda image, m, sign, place: solarize_add(
        image, int(110 * m)
    ),
}


# Those that move pixels. The others change the colours of an image alone.
MOVING = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
ON_MAPS = {
    name: operation if name in MOVING else lambda image, m, sign, place: image
    for name, operation in RANDAUGMENT.items()
}


def randaugment(num_ops: int, magnitude: float):
    """Apply random changes of colour and geometry, as RandAugment does."""
    require(num_ops > 0, "num_ops", "positive", num_ops)
    require(magnitude >= 0, "magnitude", "0 or more", magnitude)

    def change(image, seed):
        return apply_randaugment(image, seed, num_ops, magnitude)

    change.on_maps = lambda target, seed: _apply_drawn(
        target, seed, num_ops, magnitude, ON_MAPS
    )
    return change
