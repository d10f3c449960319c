"""ResNetStem: the ResNet before the Transformer of a hybrid."""

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.bottleneck_unit import BottleneckUnit
from keras_vit.layers.dtypes import nested_dtype_policy
from keras_vit.layers.image_shape import ensure_image_shape
from keras_vit.layers.standardized_conv2d import StandardizedConv2D
from keras_vit.layers.stem_epsilons import group_norm

ROOT_WIDTH = 64


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetStem(keras.layers.Layer):
    """Compute the feature map of an image with a ResNet in the style of BiT.

    A 7x7 convolution and a max-pooling, both with stride 2, are followed by
    stages of bottleneck units; each stage after the first halves the map. The
    convolutions standardise their kernels and use SAME padding. The
    normalisation is group normalisation.

    Shapes:
        images: (B, H, W, C).
        returns: (B, h, w, C'): h = H / 4 without a stage, H / 2^(s + 1) with
            s stages, rounded up; C' = 64 without a stage, 128 * 2^s with.

    Args:
        stages: Number of units in each stage: (3, 4, 9) for R50+B/16; () for
            only the first convolution and pooling.
        epsilons: A key of STEM_EPSILONS: the constants of the "official" code
            or of "timm".

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, hybrid;
        Kolesnikov et al. 2020, arXiv:1912.11370.
    """

    def __init__(
        self, stages: tuple[int, ...], epsilons: str = "official", **kwargs
    ):
        super().__init__(**kwargs)
        self.stages = tuple(as_whole(units, "stages") for units in stages)
        self.epsilons = epsilons
        dtype = self.dtype_policy
        self.root_conv = StandardizedConv2D(
            ROOT_WIDTH,
            7,
            strides=2,
            epsilons=epsilons,
            dtype=dtype,
            name="root_conv",
        )
        self.root_norm = group_norm("root_norm", epsilons, dtype)
        self.root_pool = keras.layers.MaxPooling2D(
            3,
            strides=2,
            padding="same",
            data_format="channels_last",
            dtype=dtype,
            name="root_pool",
        )
        self.units = [
            BottleneckUnit(
                ROOT_WIDTH * 2**stage,
                stride=2 if stage > 0 and unit == 0 else 1,
                epsilons=epsilons,
                dtype=dtype,
                name=f"stage_{stage:02d}_unit_{unit:02d}",
            )
            for stage, num_units in enumerate(self.stages)
            for unit in range(num_units)
        ]

    def build(self, input_shape):
        self.root_conv.build(input_shape)
        shape = self.root_conv.compute_output_shape(input_shape)
        self.root_norm.build(shape)
        shape = self.root_pool.compute_output_shape(shape)
        for unit in self.units:
            unit.build(shape)
            shape = unit.compute_output_shape(shape)
        self.input_spec = keras.InputSpec(shape=(None, *input_shape[1:]))
        self.built = True

    def call(self, images):
        x = ensure_image_shape(images, self.input_spec.shape)
        x = ops.relu(self.root_norm(self.root_conv(x)))
        x = self.root_pool(x)
        for unit in self.units:
            x = unit(x)
        return x

    def compute_output_shape(self, input_shape):
        shape = self.root_conv.compute_output_shape(input_shape)
        shape = self.root_pool.compute_output_shape(shape)
        for unit in self.units:
            shape = unit.compute_output_shape(shape)
        return shape

    def get_config(self):
        return {
            **super().get_config(),
            "stages": list(self.stages),
            "epsilons": self.epsilons,
            "dtype": nested_dtype_policy(self),
        }
