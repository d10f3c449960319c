"""A run-time check of the image size."""

import keras


def ensure_image_shape(images, shape: tuple):
    """Return `images`; fail at run time unless they have `shape`.

    Keras checks shapes when a layer is called, so eager calls and traces are
    safe without this check. But an exported TensorFlow graph accepts any
    input, and its reshape to (-1, h, P, ...) would turn four small images into
    one. The check is part of the graph and has no measurable cost; the TFLite
    converter removes it.

    Shapes: images: (B, H, W, C). returns: the same.

    Args:
        images: A batch of images or of feature maps.
        shape: (None, H, W, C) of the built layer; None matches any size.
    """
    if keras.backend.backend() != "tensorflow":
        return images  # Shapes are static, and `input_spec` has checked them.
    import tensorflow as tf

    return tf.ensure_shape(images, shape)
