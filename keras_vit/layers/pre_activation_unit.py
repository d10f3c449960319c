"""PreActivationUnit: the residual unit of a BiT ResNet."""

import keras
from keras import ops

from keras_vit.layers.dtypes import nested_dtype_policy
from keras_vit.layers.standardized_conv2d import StandardizedConv2D
from keras_vit.layers.stem_epsilons import GROUPS, group_norm

EPSILONS = "bit"


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationUnit(keras.layers.Layer):
    """Add the result of three convolutions to the input.

    Group normalisation and ReLU come before each convolution. The kernels are
    1x1, 3x3 and 1x1, standardised and without biases. If the shape changes, a
    convolution projects the input after the first normalisation and ReLU.

    Shapes:
        x: (B, h, w, C). returns: (B, h / stride, w / stride, 4 * features).

    Args:
        features: Channels of the inner convolutions.
        stride: Stride of the 3x3 convolution and of the projection.
        groups: Groups of channels that a normalisation normalises together.

    Reference: He et al. 2016, arXiv:1603.05027, figure 4 (e); Kolesnikov et
        al. 2020, arXiv:1912.11370, section 2.1.
    Differs: As in the code of BiT, the stride is that of the 3x3 convolution,
        not of the first one.
    """

    def __init__(
        self, features: int, stride: int = 1, groups: int = GROUPS, **kwargs
    ):
        super().__init__(**kwargs)
        self.features = features
        self.stride = stride
        self.groups = groups
        self.norms = [
            group_norm(name, EPSILONS, dtype=self.dtype_policy, groups=groups)
            for name in ("norm1", "norm2", "norm3")
        ]
        self.convs = [
            self._conv("conv1", features, 1),
            self._conv("conv2", features, 3, strides=stride),
            self._conv("conv3", 4 * features, 1),
        ]
        self.shortcut_conv = None

    def build(self, input_shape):
        if input_shape[-1] != 4 * self.features or self.stride != 1:
            self.shortcut_conv = self._conv(
                "shortcut_conv", 4 * self.features, 1, strides=self.stride
            )
            self.shortcut_conv.build(input_shape)
        shape = input_shape
        for norm, conv in zip(self.norms, self.convs):
            norm.build(shape)
            conv.build(shape)
            shape = conv.compute_output_shape(shape)
        self.built = True

    def call(self, x):
        y = ops.relu(self.norms[0](x))
        if self.shortcut_conv is not None:
            x = self.shortcut_conv(y)  # (B, h / stride, w / stride, 4 features)
        y = self.convs[0](y)  # (B, h, w, features)
        y = self.convs[1](ops.relu(self.norms[1](y)))
        y = self.convs[2](ops.relu(self.norms[2](y)))
        return x + y

    def compute_output_shape(self, input_shape):
        for conv in self.convs:
            input_shape = conv.compute_output_shape(input_shape)
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "features": self.features,
            "stride": self.stride,
            "groups": self.groups,
            "dtype": nested_dtype_policy(self),
        }

    def _conv(self, name, filters, kernel_size, strides=1):
        return StandardizedConv2D(
            filters,
            kernel_size,
            strides=strides,
            epsilons=EPSILONS,
            use_symmetric_padding=True,
            dtype=self.dtype_policy,
            name=name,
        )
