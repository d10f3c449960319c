"""MlpBlock: the two dense layers of a Transformer block."""

import math

import keras
from keras import ops

from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy
from keras_vit.tables import pick


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(keras.layers.Layer):
    """Apply Dense, GELU, Dense to each token.

    Shapes:
        tokens: (B, T, D). returns: the same.

    Args:
        mlp_dim: Size of the hidden layer.
        dropout_rate: Dropout rate after each of the dense layers.
        gelu: "tanh" for the approximation in the official code, or "exact"
            (erf) as in timm and Hugging Face.

    Example:
        >>> tuple(MlpBlock(mlp_dim=48)(np.ones((2, 17, 24))).shape)
        (2, 17, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, eq. 3.
    """

    def __init__(
        self,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        gelu: str = "tanh",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.dropout_rate = dropout_rate
        self.gelu = gelu
        self.supports_masking = True
        pick(GELUS, gelu, "gelu")  # Raises if unknown.
        self.dropout = keras.layers.Dropout(
            dropout_rate, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, input_shape):
        width = input_shape[-1]
        self.hidden = self._dense(self.mlp_dim, "hidden")
        self.out = self._dense(width, "out")
        self.hidden.build((None, width))
        self.out.build((None, self.mlp_dim))
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})
        self.built = True

    def call(self, tokens, training=None):
        length, width = ops.shape(tokens)[1:]
        # TensorFlow fuses a rank-2 MatMul, BiasAdd and GELU, but not the GELU
        # with a custom gradient that training uses.
        x = self.hidden(ops.reshape(tokens, (-1, width)))  # (B*T, M)
        x = pick(TRAINED_GELUS if training else GELUS, self.gelu, "gelu")(x)
        x = self.out(self.dropout(x, training=training))  # (B*T, D)
        x = ops.reshape(x, (-1, length, width))  # (B, T, D)
        return self.dropout(x, training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _dense(self, units, name):
        return keras.layers.Dense(
            units,
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=sublayer_policy(self, name),
            name=name,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "dropout_rate": self.dropout_rate,
            "gelu": self.gelu,
            "dtype": nested_dtype_policy(self),
        }


def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    return ops.gelu(x, approximate=True)


def gelu_exact(x):
    """0.5 x (1 + erf(x / sqrt(2)))."""
    return ops.gelu(x, approximate=False)


@ops.custom_gradient
def gelu_tanh_written_out(x):
    """Compute `gelu_tanh` with an explicit gradient, for TensorFlow.

    TensorFlow's own gradient needs more passes over memory and keeps more
    tensors. It also sums the gradients of the three uses of `x` in an order
    that depends on when buffers become free, so runs can differ by rounding.
    """
    linear = math.sqrt(2 / math.pi)
    cubic = 0.044715 * linear
    gate = 0.5 + 0.5 * ops.tanh(x * (linear + cubic * ops.square(x)))
    y = x * gate

    def gradient(*upstream):
        # Computing the square again is as fast as keeping it.
        slope = 2 * linear + 6 * cubic * ops.square(x)
        return upstream[0] * (gate + y * (1 - gate) * slope)

    return y, gradient


GELUS = {"tanh": gelu_tanh, "exact": gelu_exact}
# The GELUs for training. JAX and PyTorch have their own fused gradients.
TRAINED_GELUS = (
    {**GELUS, "tanh": gelu_tanh_written_out}
    if keras.backend.backend() == "tensorflow"
    else GELUS
)
