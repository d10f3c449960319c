"""Refusing images of another size in a TFLite file."""

import math

import numpy as np


def refuse_other_sizes(images):
    """Return `images`, through operations that fail for another size.

    A TFLite interpreter resizes its input to the received shape, and the
    converter removes the shape check of the SavedModel: four small images
    could be read as one large image. But element-wise operations on tensors of
    different shapes still fail. So two edges of the image are combined with
    constants of the expected size. A frame of padding prevents an edge of
    length 1 from being broadcast. The result, a number below all pixels, is
    merged into the image, so the converter cannot remove it.

    Shapes:
        images: a symbolic tensor (B, H, W, C). returns: the same.
    """
    import tensorflow as tf

    _, height, width, channels = images.shape
    floor = -3e38
    for edge, shape in (
        (images[:, :, :1], (height + 2, 1, channels + 2)),
        (images[:, :1, :, :1], (1, width + 2, 1)),
    ):
        # The converter would merge equal constants into a scalar.
        below = np.linspace(-3.1e38, -3e38, math.prod(shape), dtype="float32")
        edge = tf.pad(edge, ((0, 0), (1, 1), (1, 1), (1, 1)))
        edge = tf.maximum(edge, below.reshape(1, *shape))
        floor = tf.minimum(edge[:, 1:2, 1:2, 1:2], floor)  # (B, 1, 1, 1)
    return tf.maximum(images, floor)
