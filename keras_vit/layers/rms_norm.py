"""RmsNorm: normalisation by the root of the mean square."""

import keras
from keras import ops

from keras_vit.layers.fusion import can_fuse, fuse


@keras.saving.register_keras_serializable(package="keras_vit")
class RmsNorm(keras.layers.Layer):
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
        self.gamma = self.add_weight(
            name="gamma", shape=(input_shape[-1],), initializer="ones"
        )
        self.built = True

    def call(self, tokens, training=None):
        options = {"epsilon": self.epsilon, "dtype": self.compute_dtype}
        if training and can_fuse(tokens):
            return fuse(_normalize, **options)(tokens, self.gamma.value)
        return _normalize(tokens, self.gamma.value, **options)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


def _normalize(tokens, gamma, *, epsilon, dtype):
    x = ops.cast(tokens, "float32")
    square = ops.mean(ops.multiply(x, x), axis=-1, keepdims=True)
    x = x * ops.rsqrt(square + epsilon)
    return ops.cast(x * ops.cast(gamma, x.dtype), dtype)
