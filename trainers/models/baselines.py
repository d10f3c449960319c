"""Baselines from keras.applications, trained in the same way."""

import keras

from keras_vit.tables import pick
from trainers.recipes.model_options import BASELINES


def build_baseline(
    name: str, *, image_size: int, channels: int, num_classes: int, dtype: str
) -> keras.Model:
    """Return a new model that returns logits.

    Args:
        name: One of BASELINES.
        image_size: Side of the images, in pixels.
        channels: Channels of the images.
        num_classes: Number of logits.
        dtype: Dtype policy of the layers.
    """
    pick(dict.fromkeys(BASELINES), name, "model")
    build = getattr(keras.applications, name)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)  # They take no argument for it.
    try:
        return build(
            weights=None,
            input_shape=(image_size, image_size, channels),
            classes=num_classes,
            classifier_activation=None,
        )
    finally:
        keras.config.set_dtype_policy(before)
