"""StandardizedConv2D: a convolution with a standardised kernel."""

import keras
from keras import ops

from keras_vit.layers.stem_epsilons import STEM_EPSILONS
from keras_vit.tables import pick


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

    def convolution_op(self, inputs, kernel):
        weights = ops.cast(kernel, "float32")
        mean = ops.mean(weights, axis=(0, 1, 2), keepdims=True)
        weights = weights - mean
        variance = ops.mean(ops.square(weights), axis=(0, 1, 2), keepdims=True)
        deviation = ops.sqrt(variance + self._epsilons.variance)
        weights = weights / (deviation + self._epsilons.deviation)
        weights = ops.cast(weights, kernel.dtype)
        if not self.use_symmetric_padding:
            return super().convolution_op(inputs, weights)
        rows, columns = (side // 2 for side in self.kernel_size)
        pads = ((0, 0), (rows, rows), (columns, columns), (0, 0))
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
