"""ResNetStem: the ResNet before the Transformer of a hybrid."""

from typing import NamedTuple

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers import kernels
from keras_vit.layers.base import Composite, wide
from keras_vit.layers.norms import GroupNormalization
from keras_vit.tables import pick

GROUPS = 32


class Epsilons(NamedTuple):
    """The small constants that a ResNet adds to its divisors.

    Args:
        norm: Added to the variance in a group normalisation.
        variance: Added to the variance of a kernel.
        deviation: Added to the standard deviation of a kernel.
    """

    norm: float
    variance: float
    deviation: float


# With kernels of standard deviation 0.1, the logits of the first two rows
# differ by about 2e-4.
STEM_EPSILONS = {
    "official": Epsilons(norm=1e-6, variance=0.0, deviation=1e-5),
    "timm": Epsilons(norm=1e-5, variance=1e-8, deviation=0.0),
    "bit": Epsilons(norm=1e-5, variance=1e-10, deviation=0.0),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class StandardizedConv2D(keras.layers.Conv2D):
    """Convolve with a kernel of mean 0 and standard deviation 1 per output.

    The layer stores the raw kernel and standardises it in each call: it
    subtracts the mean, then divides by the standard deviation, with the
    constants of `epsilons`. The layer has no bias. It pads with zeros: SAME
    padding, or equally on all sides.

    Args:
        filters: Number of output channels.
        kernel_size: Side of the kernel, odd with symmetric padding.
        strides: Stride of the convolution.
        epsilons: A key of STEM_EPSILONS.
        use_symmetric_padding: Whether to pad equally on all sides, as PyTorch
            and BiT do. With a stride, SAME padding adds less at the top and
            left. The output has the same shape.

    Reference: Qiao et al. 2019, arXiv:1903.10520; as in the official code,
        the epsilon is added to the standard deviation.
    """

    def __init__(
        self,
        filters,
        kernel_size,
        strides=1,
        epsilons="official",
        use_symmetric_padding=False,
        **kwargs,
    ):
        fixed = {
            "padding": "same",
            "use_bias": False,
            "kernel_initializer": "lecun_normal",
            "data_format": "channels_last",
        }
        super().__init__(
            filters, kernel_size, strides=strides, **{**kwargs, **fixed}
        )
        self.epsilons = epsilons
        self.use_symmetric_padding = use_symmetric_padding
        self._epsilons = pick(STEM_EPSILONS, epsilons, "epsilons")

    def add_weight(self, *args, **kwargs):
        # Autocast would round the kernel before its mean is taken.
        return super().add_weight(*args, **{**kwargs, "autocast": False})

    def convolution_op(self, inputs, kernel):
        weights = ops.cast(kernel, wide(inputs.dtype))
        mean = ops.mean(weights, axis=(0, 1, 2), keepdims=True)
        weights = weights - mean
        variance = ops.mean(ops.square(weights), axis=(0, 1, 2), keepdims=True)
        deviation = ops.sqrt(variance + self._epsilons.variance)
        weights = weights / (deviation + self._epsilons.deviation)
        weights = ops.cast(weights, inputs.dtype)
        if not self.use_symmetric_padding:
            return super().convolution_op(inputs, weights)
        pads = [(side // 2,) * 2 for side in self.kernel_size]
        pads = ((0, 0), *pads, (0, 0))
        return ops.conv(
            ops.pad(inputs, pads),
            weights,
            strides=self.strides,
            padding="valid",
            data_format=self.data_format,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "epsilons": self.epsilons,
            "use_symmetric_padding": self.use_symmetric_padding,
        }


def group_norm(epsilons: str, groups: int = GROUPS, **options):
    """Return a group normalisation for a ResNet, see STEM_EPSILONS."""
    epsilon = pick(STEM_EPSILONS, epsilons, "epsilons").norm
    return GroupNormalization(groups, epsilon=epsilon, **options)


class ResidualUnit(Composite):
    """Three convolutions beside a shortcut, with group normalisations.

    The kernels are 1x1, 3x3 and 1x1, standardised and without biases. If the
    shape changes, a convolution projects the shortcut.

    Shapes:
        x: (B, h, w, C). returns: (B, h / stride, w / stride, 4 * features).

    Args:
        features: Channels of the inner convolutions.
        stride: Stride of the 3x3 convolution and the projected shortcut.
        epsilons: A key of STEM_EPSILONS.
        groups: Groups of channels that a normalisation normalises together.
    """

    uses_symmetric_padding = False

    def __init__(
        self,
        features: int,
        stride: int = 1,
        epsilons: str = "official",
        groups: int = GROUPS,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.features = features
        self.stride = stride
        self.epsilons = epsilons
        self.groups = groups
        self.shortcut_conv = None

    def make_convs(self):
        """Return the convolutions of the branch."""
        return [
            self.make_conv("conv1", self.features, 1),
            self.make_conv("conv2", self.features, 3, self.stride),
            self.make_conv("conv3", 4 * self.features, 1),
        ]

    def make_conv(self, name, *arguments):
        """Return a convolution."""
        options = {"epsilons": self.epsilons}
        options["use_symmetric_padding"] = self.uses_symmetric_padding
        return self.inner(StandardizedConv2D, name, *arguments, **options)

    def make_norm(self, name, gamma_initializer="ones"):
        """Return a group normalisation."""
        options = {"gamma_initializer": gamma_initializer}
        return self.inner(
            group_norm, name, self.epsilons, self.groups, **options
        )

    def build(self, input_shape):
        if input_shape[-1] != 4 * self.features or self.stride != 1:
            self.shortcut_conv = self.make_conv(
                "shortcut_conv", 4 * self.features, 1, self.stride
            )
            self.shortcut_conv.build(input_shape)

    def compute_output_shape(self, input_shape):
        for conv in self.convs:
            input_shape = conv.compute_output_shape(input_shape)
        return input_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class BottleneckUnit(ResidualUnit):
    """Add the result of three convolutions to the input, then apply ReLU.

    A normalisation follows each convolution. The scale of the last one starts
    at zero, so a new unit returns the ReLU of its shortcut.

    Reference: He et al. 2016, arXiv:1512.03385, figure 5.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.convs = self.make_convs()
        self.norms = [
            self.make_norm("norm1"),
            self.make_norm("norm2"),
            self.make_norm("norm3", gamma_initializer="zeros"),
        ]
        self.shortcut_norm = None

    def build(self, input_shape):
        super().build(input_shape)
        if self.shortcut_conv is not None:
            self.shortcut_norm = self.make_norm("shortcut_norm")
            self.shortcut_norm.build(self.compute_output_shape(input_shape))
        shape = input_shape
        for conv, norm in zip(self.convs, self.norms):
            conv.build(shape)
            shape = conv.compute_output_shape(shape)
            norm.build(shape)

    def call(self, x):
        shortcut = x
        if self.shortcut_conv is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(x))
        for conv, norm in zip(self.convs[:-1], self.norms[:-1]):
            x = ops.relu(norm(conv(x)))
        x = self.norms[-1](self.convs[-1](x))
        return ops.relu(x + shortcut)


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationUnit(ResidualUnit):
    """Add the result of three convolutions to the input, as in BiT.

    Group normalisation and ReLU come before each convolution. The shortcut is
    projected after the first normalisation and ReLU.

    Args:
        features: Channels of the inner convolutions.
        stride: Stride of the 3x3 convolution and of the projection.
        epsilons: A key of STEM_EPSILONS.
        groups: Groups of channels that a normalisation normalises together.

    Reference: He et al. 2016, arXiv:1603.05027, figure 4 (e); Kolesnikov et
        al. 2020, arXiv:1912.11370, section 2.1.
    Differs: As in the code of BiT, the stride is that of the 3x3 convolution,
        not of the first one.
    """

    uses_symmetric_padding = True

    def __init__(
        self,
        features: int,
        stride: int = 1,
        epsilons: str = "bit",
        groups: int = GROUPS,
        **kwargs,
    ):
        super().__init__(features, stride, epsilons, groups, **kwargs)
        self.norms = [self.make_norm(f"norm{i}") for i in (1, 2, 3)]
        self.convs = self.make_convs()

    def build(self, input_shape):
        super().build(input_shape)
        shape = input_shape
        for norm, conv in zip(self.norms, self.convs):
            norm.build(shape)
            conv.build(shape)
            shape = conv.compute_output_shape(shape)

    def call(self, x):
        y = ops.relu(self.norms[0](x))
        if self.shortcut_conv is not None:
            x = self.shortcut_conv(y)  # (B, h / stride, w / stride, 4 features)
        y = self.convs[0](y)  # (B, h, w, features)
        y = self.convs[1](ops.relu(self.norms[1](y)))
        y = self.convs[2](ops.relu(self.norms[2](y)))
        return x + y


ROOT_WIDTH = 64


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetStem(Composite):
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
        options = {"strides": 2, "epsilons": epsilons}
        self.root_conv = self.inner(
            StandardizedConv2D, "root_conv", ROOT_WIDTH, 7, **options
        )
        self.root_norm = self.inner(group_norm, "root_norm", epsilons)
        self.root_pool = self.inner(
            keras.layers.MaxPooling2D,
            "root_pool",
            3,
            strides=2,
            padding="same",
            data_format="channels_last",
        )
        self.units = [
            self.inner(
                BottleneckUnit,
                f"stage_{stage:02d}_unit_{unit:02d}",
                ROOT_WIDTH * 2**stage,
                stride=2 if stage > 0 and unit == 0 else 1,
                epsilons=epsilons,
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

    def call(self, images):
        x = kernels.ensure_shape(images, self.input_spec.shape)
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
