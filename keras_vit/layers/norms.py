"""NORMS: the normalisations of tokens."""

import keras
from keras import ops

from keras_vit.layers import kernels
from keras_vit.layers.base import Layer, wide


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Normalise each token to mean 0 and variance 1, then scale and shift.

    Computes the same as Keras' layer over the last axis, with the epsilon of
    the official code. The variance is the mean of the squared deviations, in
    float32: this needs fewer passes over the tokens than `ops.moments`, and
    does not subtract large numbers from each other.

    Shapes:
        tokens: (..., D). returns: the same.

    Args:
        epsilon: Added to the variance. Keras' own default is 1e-3.

    Reference: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs, training=None):
        plain = self.axis == [len(inputs.shape) - 1] or self.axis == [-1]
        plain = plain and self.center and self.scale and not self.rms_scaling
        if not plain:
            return super().call(inputs)
        return kernels.layer_norm(
            _normalize,
            inputs,
            self.gamma.value,
            self.beta.value,
            epsilon=self.epsilon,
            dtype=self.compute_dtype,
            training=training,
        )


def _normalize(tokens, gamma, beta, *, epsilon, dtype):
    x = ops.cast(tokens, wide(tokens.dtype))
    x = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.multiply(x, x), axis=-1, keepdims=True)
    x = x * ops.rsqrt(variance + epsilon)
    x = x * ops.cast(gamma, x.dtype) + ops.cast(beta, x.dtype)
    return ops.cast(x, dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class RmsNorm(Layer):
    """Divide each token by the root of its mean square, then scale it.

    y = x / sqrt(mean(x^2) + epsilon) gamma, in float32. There is no bias.

    Shapes:
        tokens: (..., D). returns: the same.

    Args:
        epsilon: Added to the mean square.

    Example:
        >>> y = RmsNorm(epsilon=0.0)(np.array([[3.0, -3.0]]))
        >>> [float(number) for number in y[0]]
        [1.0, -1.0]

    Reference: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.supports_masking = True

    def build(self, input_shape):
        # Autocast would round it before it is multiplied in float32.
        self.gamma = self.add_weight(
            name="gamma",
            shape=(input_shape[-1],),
            initializer="ones",
            autocast=False,
        )

    def call(self, tokens, training=None):
        return kernels.fuse(
            _normalize_square,
            tokens,
            self.gamma.value,
            epsilon=self.epsilon,
            dtype=self.compute_dtype,
            training=training,
        )


def _normalize_square(tokens, gamma, *, epsilon, dtype):
    x = ops.cast(tokens, wide(tokens.dtype))
    square = ops.mean(ops.multiply(x, x), axis=-1, keepdims=True)
    x = x * ops.rsqrt(square + epsilon)
    return ops.cast(x * ops.cast(gamma, x.dtype), dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class UnitNorm(Layer):
    """Divide each vector by its length.

    y = x / sqrt(sum(x^2)), in float32. Unlike Keras' UnitNormalization, it has
    no number that float16 cannot hold.

    Shapes:
        vectors: (..., D). returns: the same.

    Example:
        >>> y = layers.UnitNorm()(np.array([[3.0, -4.0]]))
        >>> [round(float(number), 6) for number in y[0]]
        [0.6, -0.8]
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, vectors):
        x = ops.cast(vectors, wide(vectors.dtype))
        # The mean is not as large as the sum. A vector of zeros stays one.
        square = ops.mean(ops.multiply(x, x), axis=-1, keepdims=True)
        scale = ops.rsqrt(square + 1e-12) * vectors.shape[-1] ** -0.5
        return ops.cast(x * scale, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNormalization(keras.layers.GroupNormalization):
    """Normalise groups of channels of an image, then scale and shift.

    Computes the same as Keras' layer over the last axis, in float32, on
    tensors of at most four axes, which is all that GPUs of phones take. The
    names of weights in files are made of the name of this class.

    Shapes:
        x: (B, h, w, C). returns: the same.

    Reference: Wu and He 2018, arXiv:1803.08494.
    """

    def call(self, inputs):
        if self.axis not in (-1, 3) or not (self.center and self.scale):
            return super().call(inputs)
        x = ops.cast(inputs, wide(inputs.dtype))
        _, h, w, channels = ops.shape(x)
        groups = self.groups, channels // self.groups
        # Sums over the pixels of a channel are fast; those of the channels of
        # a group are few. No large numbers are subtracted from each other.
        x = kernels.reshape(x, (-1, h * w, channels))
        means = ops.mean(x, axis=1, keepdims=True)
        x = x - means
        variances = ops.mean(ops.multiply(x, x), axis=1)
        means, variances = (
            kernels.reshape(each, (-1, *groups)) for each in (means, variances)
        )
        shift = means - ops.mean(means, axis=-1, keepdims=True)
        variances = variances + ops.multiply(shift, shift)
        variance = ops.mean(variances, axis=-1, keepdims=True)
        gamma, beta = (
            ops.reshape(ops.cast(weight.value, x.dtype), groups)
            for weight in (self.gamma, self.beta)
        )
        scale = ops.rsqrt(variance + self.epsilon) * gamma  # (B, groups, ...)
        offset = shift * scale + beta
        scale, offset = (
            kernels.reshape(each, (-1, 1, channels)) for each in (scale, offset)
        )
        x = kernels.reshape(x * scale + offset, (-1, h, w, channels))
        return ops.cast(x, self.compute_dtype)


# Kind -> layer.
NORMS = {"layer": LayerNorm, "rms": RmsNorm}
