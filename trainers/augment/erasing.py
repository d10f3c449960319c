"""Operations on images: random erasing."""

import math

import tensorflow as tf

from trainers.augment.boxes import mask_box
from trainers.augment.operation_arguments import require


def random_erasing(
    probability: float = 0.25,
    smallest: float = 0.02,
    largest: float = 1 / 3,
    aspect: float = 0.3,
    fill: float | None = None,
):
    """Overwrite a random rectangle of some of the images.

    Args:
        probability: Share of the images that are changed.
        smallest: Smallest area of the rectangle, as a share of the image.
        largest: Largest area of the rectangle, as a share of the image.
        aspect: Smallest aspect ratio; the largest one is 1 / aspect. The
            logarithm of the ratio is uniform in between.
        fill: Level to write, from 0 to 255; None to draw a random level for
            each pixel and channel.

    Reference: Zhong et al. 2017, arXiv:1708.04896, algorithm 1.
    Differs: The paper draws rectangles until one fits into the image; here
        ten are drawn, and the first that fits is used. The aspect ratio is
        drawn on a logarithmic scale, not a linear one.
    """
    require(0 <= probability <= 1, "probability", "in [0, 1]", probability)
    require(0 < smallest <= 1, "smallest", "in (0, 1]", smallest)
    require(smallest <= largest <= 1, "largest", "in [smallest, 1]", largest)
    require(0 < aspect <= 1, "aspect", "in (0, 1]", aspect)
    if fill is not None:
        require(0 <= fill <= 255, "fill", "in [0, 255]", fill)
        fill = float(fill)

    def erase(image, seed):
        seeds = tf.unstack(tf.random.split(seed, 4))
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        area = tf.reduce_prod(size) * tf.random.stateless_uniform(
            (10,), seeds[0], smallest, largest
        )
        ratio = tf.exp(
            math.log(aspect)
            * tf.random.stateless_uniform((10,), seeds[1], -1.0, 1.0)
        )
        sides = tf.round(
            tf.stack([tf.sqrt(area * ratio), tf.sqrt(area / ratio)], -1)
        )
        fits = tf.reduce_all(sides <= size, -1)
        sides = sides[tf.argmax(fits)]
        draw = tf.random.stateless_uniform((3,), seeds[2])
        start = tf.floor(draw[1:] * (size - sides + 1))
        is_drawn = (draw[0] < probability) & tf.reduce_any(fits)

        def overwrite():
            levels = fill
            if fill is None:
                levels = tf.random.stateless_uniform(
                    tf.shape(image), seeds[3], 0.0, 255.0
                )
            box = mask_box(image, start, start + sides)[..., None]
            return tf.where(box, levels, image)

        # Drawing the noise is slow, so it is drawn only where it is used.
        return tf.cond(is_drawn, overwrite, lambda: image)

    return erase


ERASING = {"random_erasing": random_erasing}
