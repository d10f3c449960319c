"""The check that an image has the size a layer was built for."""

import keras


def ensure_image_shape(images, shape: tuple):
    """Return `images`, failing at run time unless they have `shape`.

    Keras compares shapes when a layer is called, so eager calls and traces
    are safe without this. An exported TensorFlow graph is not: it runs on
    whatever it is fed, and a reshape to (-1, h, P, ...) would turn four
    small images into one answer. The check travels with the graph, costs
    nothing and is folded away by the TFLite converter.

    Shapes: images: (B, H, W, C). returns: the same.

    Args:
        images: A batch of images or of feature maps.
        shape: (None, H, W, C) as the layer was built; None matches any size.
    """
    if keras.backend.backend() != "tensorflow":
        return images  # Shapes are static: the layer's input_spec has checked.
    import tensorflow as tf

    return tf.ensure_shape(images, shape)
