"""BottleneckUnit: the residual unit of a ResNet stem."""

import keras
from keras import ops

from keras_vit.layers.dtypes import nested_dtype_policy
from keras_vit.layers.standardized_conv2d import StandardizedConv2D
from keras_vit.layers.stem_epsilons import group_norm


@keras.saving.register_keras_serializable(package="keras_vit")
class BottleneckUnit(keras.layers.Layer):
    """Add the result of three convolutions to the input, then apply ReLU.

    The kernels are 1x1, 3x3 and 1x1. If the shape changes, a convolution
    projects the shortcut. The scale of the last normalisation starts at zero,
    so a new unit returns the ReLU of its shortcut.

    Shapes:
        x: (B, h, w, C). returns: (B, h / stride, w / stride, 4 * features).

    Args:
        features: Channels of the inner convolutions.
        stride: Stride of the 3x3 convolution and the projected shortcut.
        epsilons: A key of STEM_EPSILONS.

    Reference: He et al. 2016, arXiv:1512.03385, figure 5.
    """

    def __init__(
        self,
        features: int,
        stride: int = 1,
        epsilons: str = "official",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.features = features
        self.stride = stride
        self.epsilons = epsilons
        self.convs = [
            self._conv("conv1", features, 1),
            self._conv("conv2", features, 3, strides=stride),
            self._conv("conv3", 4 * features, 1),
        ]
        self.norms = [
            self._norm("norm1"),
            self._norm("norm2"),
            self._norm("norm3", gamma_initializer="zeros"),
        ]
        self.shortcut_conv = None
        self.shortcut_norm = None

    def build(self, input_shape):
        if input_shape[-1] != 4 * self.features or self.stride != 1:
            self.shortcut_conv = self._conv(
                "shortcut_conv", 4 * self.features, 1, strides=self.stride
            )
            self.shortcut_norm = self._norm("shortcut_norm")
            self.shortcut_conv.build(input_shape)
            self.shortcut_norm.build(self.compute_output_shape(input_shape))
        shape = input_shape
        for conv, norm in zip(self.convs, self.norms):
            conv.build(shape)
            shape = conv.compute_output_shape(shape)
            norm.build(shape)
        self.built = True

    def call(self, x):
        shortcut = x
        if self.shortcut_conv is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(x))
        for conv, norm in zip(self.convs[:-1], self.norms[:-1]):
            x = ops.relu(norm(conv(x)))
        x = self.norms[-1](self.convs[-1](x))
        return ops.relu(x + shortcut)

    def compute_output_shape(self, input_shape):
        for conv in self.convs:
            input_shape = conv.compute_output_shape(input_shape)
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "features": self.features,
            "stride": self.stride,
            "epsilons": self.epsilons,
            "dtype": nested_dtype_policy(self),
        }

    def _conv(self, name, filters, kernel_size, strides=1):
        return StandardizedConv2D(
            filters,
            kernel_size,
            strides=strides,
            epsilons=self.epsilons,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name, **kwargs):
        return group_norm(name, self.epsilons, self.dtype_policy, **kwargs)
