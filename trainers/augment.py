"""Image augmentation, written as a line of operations.

`"affine(10, 0.1, 0.1)|flip_lr"` is read from left to right. An operation is
`name` or `name(arguments)`, arguments being numbers. Every operation draws
from a seed of its own that depends on the example alone, so that a run can be
repeated whatever the number of threads.
"""

import ast
import math
from collections.abc import Callable

import tensorflow as tf

from keras_vit.tables import pick


def parse_augmentation(text: str) -> Callable:
    """Return the function that `text` describes.

    Shapes:
        The function takes an image (H, W, C) of floats from 0 to 255 and a
        seed (2,) of integers, and returns an image (H', W', C).

    Args:
        text: Operations separated by `|`; an empty text changes nothing.

    Raises:
        ValueError: If an operation is unknown or its arguments do not fit.

    Example:
        >>> function = parse_augmentation("flip_lr|pad_crop(1)")
        >>> tuple(function(np.ones((8, 6, 3), "float32"), (0, 0)).shape)
        (8, 6, 3)
    """
    operations = [
        _parse_operation(part.strip(), text)
        for part in text.split("|")
        if text.strip()
    ]

    def augment(image, seed):
        seeds = tf.random.split(seed, max(len(operations), 1))
        for index, operation in enumerate(operations):
            image = operation(image, seeds[index])
        return image

    return augment


def _parse_operation(part, text):
    try:
        tree = ast.parse(part, mode="eval").body
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        name = call.func.id
        arguments = [ast.literal_eval(argument) for argument in call.args]
        if call.keywords:
            raise ValueError
    except (SyntaxError, AttributeError, ValueError):
        raise ValueError(
            "`augment` must be operations like 'flip_lr' or 'pad_crop(4)', "
            f"separated by '|'. Received: {part!r} in augment={text!r}"
        ) from None
    factory = pick(OPS, name, "augment")
    try:
        operation = factory(*arguments)
        operation(tf.zeros((32, 32, 3)), tf.constant([0, 0]))
    except (
        AttributeError,
        TypeError,
        ValueError,
        tf.errors.OpError,
    ) as error:
        raise ValueError(
            f"`augment`: {error}. Received: {part!r} in augment={text!r}"
        ) from None
    return operation


def flip_lr():
    """Mirror half of the images from left to right."""

    def flip(image, seed):
        return tf.image.stateless_random_flip_left_right(image, seed)

    return flip


def pad_crop(pixels: int):
    """Pad by `pixels` of zeros on each side and crop back at random."""

    def shift(image, seed):
        shape = tf.shape(image)
        border = [[pixels, pixels], [pixels, pixels], [0, 0]]
        return tf.image.stateless_random_crop(
            tf.pad(image, border), shape, seed
        )

    return shift


def inception_crop(smallest: float = 0.05):
    """Cut out a random part of the image, of any shape near a square.

    Args:
        smallest: The least share of the area that is kept.

    Reference: Szegedy et al. 2015, arXiv:1409.4842; aspect ratio from 3/4 to
        4/3, as in the official ViT code.
    """

    def crop(image, seed):
        shape = tf.shape(image)
        offset, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            seed,
            min_object_covered=0.0,
            area_range=(smallest, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        channels = image.shape[-1]
        return tf.ensure_shape(
            tf.slice(image, offset, size), (None, None, channels)
        )

    return crop


def affine(degrees: float, shift: float, scale: float):
    """Rotate, move and zoom the image at random about its centre.

    Empty space is filled with zeros.

    Args:
        degrees: Largest rotation, either way.
        shift: Largest move along each axis, as a share of the size.
        scale: Largest zoom, as a share: 0.1 zooms by 0.9 to 1.1.
    """

    def transform(image, seed):
        draw = tf.random.stateless_uniform((4,), seed, -1.0, 1.0)
        height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
        angle = draw[0] * degrees * math.pi / 180
        zoom = 1.0 / (1.0 + draw[1] * scale)
        cos, sin = tf.cos(angle) * zoom, tf.sin(angle) * zoom
        # Maps a pixel of the result to one of the source, about the centre.
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
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="CONSTANT",
        )[0]

    return transform


OPS = {
    "affine": affine,
    "flip_lr": flip_lr,
    "inception_crop": inception_crop,
    "pad_crop": pad_crop,
}
