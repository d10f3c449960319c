"""Operations on images: flips, rotations, translations and zooms."""

import math

import tensorflow as tf

from trainers.augment.operation_arguments import require


def flip_lr():
    """Mirror half of the images from left to right."""
    return tf.image.stateless_random_flip_left_right


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

    def transform(image, seed):
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
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="CONSTANT",
        )[0]

    return transform


GEOMETRY = {"affine": affine, "flip_lr": flip_lr}
