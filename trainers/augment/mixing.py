"""Operations on batches: mixup and CutMix.

Each factory returns a function of the images, the images to mix them with,
and the seed. The function returns the mixed images and the share that the
other images have in the labels.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from trainers.augment.arguments import require
from trainers.augment.boxes import mask_box


def mixup(alpha: float = 0.2):
    """Average images with others.

    The weight is the larger part of a draw from Beta(alpha, alpha), one for
    the batch.

    Args:
        alpha: The larger, the more of the other image.

    Reference: Zhang et al. 2018, arXiv:1710.09412; the larger part as in the
        official code of Beyer et al. 2022, arXiv:2205.01580.
    Differs: There, an image is mixed with the one before it in the batch of
        its device, the first with the last, and each device draws a weight of
        its own. Here images are mixed in pairs, the first with the second,
        by one weight: a batch that is cut between pairs, however often, gives
        what it gives as a whole.
    """
    require(alpha > 0, "alpha", "positive", alpha)

    def mix(images, others, seed):
        share = draw_beta(alpha, seed)
        share = tf.minimum(share, 1 - share)
        return images + tf.cast(share, images.dtype) * (others - images), share

    return mix


def cutmix(alpha: float = 1.0):
    """Replace a rectangle of images by that of others.

    Its area is a draw from Beta(alpha, alpha), its shape that of the image
    and its centre anywhere, one rectangle for the batch. The labels are mixed
    by the area that is inside the image.

    Args:
        alpha: The larger, the closer to half of the area.

    Reference: Yun et al. 2019, arXiv:1905.04899, section 3.1.
    Differs: Images are mixed in pairs, as by mixup.
    """
    require(alpha > 0, "alpha", "positive", alpha)

    def mix(images, others, seed):
        of_share, of_place = tf.unstack(tf.random.split(seed, 2))
        size = tf.cast(tf.shape(images)[1:3], tf.float32)
        centre = size * tf.random.stateless_uniform((2,), of_place)
        half = size * tf.sqrt(draw_beta(alpha, of_share)) / 2
        start = tf.round(tf.maximum(centre - half, 0.0))
        end = tf.round(tf.minimum(centre + half, size))
        box = mask_box(images, start, end)[..., None]
        share = tf.reduce_prod((end - start) / size)
        return tf.where(box, others, images), share

    return mix


def draw_beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Return a draw from Beta(alpha, alpha).

    The cosine gives one of Beta(alpha + 1, alpha + 1), the other two turn it
    into one of alpha. There is no rejection, so that XLA can compile it, and
    it is the logarithm of the odds, which a small alpha does not spoil.

    Reference: Devroye 1986, Non-Uniform Random Variate Generation, IX.3.2
        (gamma variates of alpha from alpha + 1) and IX.4.2 (Ulrich's method).
    """
    draw = tf.random.stateless_uniform((4,), seed, 1e-30, 1.0)
    radius = tf.sqrt(1 - draw[0] ** (2 / (2 * alpha + 1)))
    odds = 2 * tf.atanh(radius * tf.cos(2 * math.pi * draw[1]))
    return tf.sigmoid(odds + tf.math.log(draw[2] / draw[3]) / alpha)


def mix_pairs(
    operations: Sequence[tuple[int, Callable]],
    images: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mix images in pairs by one of the operations, drawn for the batch.

    The images 0 and 1 are a pair, 2 and 3, and so on. An unpaired image is
    mixed with itself, and so is one whose partner has the weight 0.

    Shapes:
        images: (B, H, W, C). labels: (B, classes). weights: (B,). seed: (2,).
        returns: images and labels of the same shapes.

    Args:
        operations: (place in the line, operation) pairs.
        images: To mix.
        labels: Of the images.
        weights: 0 for images that are not there.
        seed: What all draws depend on.
    """
    if not operations:
        return images, labels
    own = tf.range(tf.shape(weights)[0])
    other = tf.bitwise.bitwise_xor(own, 1)
    other = tf.where(other < tf.size(own), other, own)
    is_there = weights > 0
    other = tf.where(is_there & tf.gather(is_there, other), other, own)
    others = tf.gather(images, other)

    def branch(place, operation):
        return lambda: operation(images, others, tf.random.fold_in(seed, place))

    choice = tf.random.stateless_uniform(
        (), tf.random.fold_in(seed, -1), 0, len(operations), tf.int32
    )
    branches = [branch(*row) for row in operations]
    images, share = tf.switch_case(choice, branches)
    share = tf.cast(share, labels.dtype)
    return images, labels + share * (tf.gather(labels, other) - labels)


MIXING = {"cutmix": cutmix, "mixup": mixup}
