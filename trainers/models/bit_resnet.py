"""The ResNets of BiT: pre-activation, group norm, standardised kernels."""

import keras

from keras_vit.layers import PreActivationUnit
from keras_vit.layers.resnet_stem import (
    GROUPS,
    ROOT_WIDTH,
    StandardizedConv2D,
    group_norm,
)
from trainers.recipes.baselines import BitSize

EPSILONS = "bit"


def build_bit_resnet(
    size: BitSize,
    *,
    image_size: int | None,
    channels: int = 3,
    num_classes: int,
    head_bias: float = 0.0,
    dtype=None,
    name: str = "bit_resnet",
) -> keras.Model:
    """Return a new BiT ResNet, which returns logits.

    The kernel of the head starts at zero, as in the official code.

    Shapes: images: (B, H, W, C), floats in [-1, 1]. returns: (B, classes).

    Args:
        size: A row of BIT_SIZES, or another one.
        image_size: Side of the images, in pixels; None for images of any size.
        channels: Channels of the images.
        num_classes: Number of logits; 0 for a model without a head.
        head_bias: Initial bias of the head.
        dtype: Dtype policy of the layers.
        name: Name of the model.

    Reference: Kolesnikov et al. 2020, arXiv:1912.11370, section 2.1;
        google-research/big_transfer.
    Differs: A width factor below one reduces the number of groups as well, so
        that a group has at least two channels.
    """
    width = round(ROOT_WIDTH * size.width_factor)
    groups = min(GROUPS, width // 2)
    images = keras.Input((image_size, image_size, channels), name="images")
    x = _connect_root(images, width, size.use_small_root, dtype)
    for stage, num_units in enumerate(size.units):
        for unit in range(num_units):
            layer = PreActivationUnit(
                width * 2**stage,
                stride=2 if stage > 0 and unit == 0 else 1,
                groups=groups,
                dtype=dtype,
                name=f"stage_{stage:02d}_unit_{unit:02d}",
            )
            x = layer(x)
    x = group_norm("norm", EPSILONS, dtype, groups=groups)(x)
    x = keras.layers.ReLU(dtype=dtype, name="relu")(x)
    pool = keras.layers.GlobalAveragePooling2D
    x = pool("channels_last", dtype=dtype, name="pool")(x)  # (B, C)
    if not num_classes:
        return keras.Model(images, x, name=name)
    head = keras.layers.Dense(
        num_classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(head_bias),
        dtype=dtype,
        name="predictions",
    )
    return keras.Model(images, head(x), name=name)


def _connect_root(images, width, use_small_root, dtype):
    """Return the feature map before the first stage."""
    kernel_size, stride = (3, 1) if use_small_root else (7, 2)
    x = StandardizedConv2D(
        width,
        kernel_size,
        strides=stride,
        epsilons=EPSILONS,
        use_symmetric_padding=True,
        dtype=dtype,
        name="root_conv",
    )(images)  # (B, H / 2, W / 2, C)
    if use_small_root:
        return x
    # Zeros, not the minus infinity of padded poolings: the map has not passed
    # a ReLU, so a border may be negative.
    layers = keras.layers
    x = layers.ZeroPadding2D(
        1, data_format="channels_last", dtype=dtype, name="root_pad"
    )(x)
    return layers.MaxPooling2D(
        3, 2, data_format="channels_last", dtype=dtype, name="root_pool"
    )(x)  # (B, H / 4, W / 4, C)
