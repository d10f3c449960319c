"""Operations on batches: mixup and CutMix.

Each factory returns a function of the images, the images to mix them with,
and the seed. The function returns the mixed images, and the weight of the
other images in the labels.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from trainers.augment.boxes import mask_box
from trainers.augment.operation_arguments import require


def mixup(alpha: float = 0.2):
    """Average each image with another one.

    One weight w is drawn from Beta(alpha, alpha) for the batch; max(w, 1 - w)
    is the weight of the image, and the rest that of the other image.

    Args:
        alpha: A larger value gives the other image more weight on average.

    Reference: Zhang et al. 2018, arXiv:1710.09412; the maximum as in the
        official code of Beyer et al. 2022, arXiv:2205.01580.
    Differs: The official code mixes each image with the previous one in the
        batch of its device, and draws one weight per device. Here images are
        mixed in pairs, the first with the second, with one weight per batch.
        So splitting the batch between pairs does not change the result.
    """
    require(alpha > 0, "alpha", "positive", alpha)

    def mix(images, others, seed):
        share = draw_beta(alpha, seed)
        share = tf.minimum(share, 1 - share)
        return images + tf.cast(share, images.dtype) * (others - images), share

    return mix


def cutmix(alpha: float = 1.0):
    """Replace a rectangle of each image by that of another one.

    The batch shares one rectangle. Its area is drawn from Beta(alpha, alpha),
    it has the aspect ratio of the image, and its centre is uniform in the
    image. The labels are mixed in proportion to the area inside the image.

    Args:
        alpha: The larger, the closer the area is to half of the image.

    Reference: Yun et al. 2019, arXiv:1905.04899, section 3.1.
    Differs: Images are mixed in pairs, as in `mixup`.
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

    Ulrich's method gives a draw from Beta(alpha + 1, alpha + 1), and two more
    uniform draws turn it into one from Beta(alpha, alpha). There is no
    rejection, so XLA can compile it. It works with the logarithm of the odds,
    which stays accurate for small alpha.

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
    """Mix images in pairs with one operation, which is drawn for each batch.

    Images 0 and 1 form a pair, images 2 and 3 another, and so on. An unpaired
    image is mixed with itself, and so is an image whose partner has weight 0.

    Shapes:
        images: (B, H, W, C). labels: (B, classes). weights: (B,). seed: (2,).
        returns: images and labels of the same shapes.

    Args:
        operations: (place in the line, operation) pairs.
        images: Images to mix.
        labels: Labels of the images.
        weights: Weights of the images; 0 marks a missing image.
        seed: Seed of all random numbers.
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
