"""Baselines: BiT ResNets, and models of keras.applications."""

import keras

from keras_vit.tables import pick
from trainers.models.bit_resnet import build_bit_resnet
from trainers.recipes.baselines import BASELINES, BIT_SIZES


def build_baseline(
    name: str,
    *,
    image_size: int,
    channels: int,
    num_classes: int,
    dtype: str,
    head_bias: float = 0.0,
) -> keras.Model:
    """Return a new model that returns logits.

    Args:
        name: One of BASELINES.
        image_size: Side of the images, in pixels.
        channels: Channels of the images.
        num_classes: Number of logits.
        dtype: Dtype policy of the layers.
        head_bias: Initial bias of the head of a BiT ResNet.
    """
    pick(dict.fromkeys(BASELINES), name, "model")
    if name in BIT_SIZES:
        return build_bit_resnet(
            BIT_SIZES[name],
            image_size=image_size,
            channels=channels,
            num_classes=num_classes,
            head_bias=head_bias,
            dtype=dtype,
            name=name,
        )
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
