"""MlpBlock: the dense layers of a Transformer block, and ACTIVATIONS."""

import keras
from keras import ops

from keras_vit.arguments import as_rate, as_whole
from keras_vit.layers import kernels
from keras_vit.layers.base import Composite
from keras_vit.layers.norms import NORMS
from keras_vit.tables import check_name, pick


def gelu_tanh(x):
    """Return 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    return ops.gelu(x, approximate=True)


def gelu_exact(x):
    """Return 0.5 x (1 + erf(x / sqrt(2)))."""
    return ops.gelu(x, approximate=False)


def gelu_quick(x):
    """Return x sigmoid(1.702 x), the GELU of OpenAI's CLIP."""
    return ops.multiply(x, ops.sigmoid(1.702 * x))


# "tanh" is the GELU of the official code, "exact" that of timm and Hugging
# Face.
ACTIVATIONS = {
    "tanh": gelu_tanh,
    "exact": gelu_exact,
    "quick": gelu_quick,
    "silu": ops.silu,
    "relu": ops.relu,
    "elu": ops.elu,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(Composite):
    """Apply Dense, activation, Dense to each token.

    A gated MLP (SwiGLU, if the activation is "silu") multiplies the activated
    gate by a second projection: (act(x W_gate) * (x W_up)) W_out. One matrix
    product computes both.

    Shapes:
        tokens: (B, T, D). returns: the same.

    Args:
        mlp_dim: Size M of the hidden layer.
        dropout_rate: Dropout rate after each of the dense layers.
        activation: A key of ACTIVATIONS. "tanh" is the GELU of the official
            code, "exact" that of timm and Hugging Face.
        is_gated: Whether the MLP has a gate. The kernel of `hidden` is then
            (D, 2M): first the gate.
        use_inner_norm: Whether a norm precedes the last dense layer.
        norm: The kind of the norm, a key of NORMS.
        norm_epsilon: Its epsilon.
        use_bias: Whether the dense layers have biases.

    Example:
        >>> tuple(MlpBlock(mlp_dim=48)(np.ones((2, 17, 24))).shape)
        (2, 17, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, eq. 3;
        Shazeer 2020, arXiv:2002.05202, for gates.
    """

    handed_down = ("dropout_rate", "norm", "norm_epsilon")

    def __init__(
        self,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        activation: str = "tanh",
        is_gated: bool = False,
        use_inner_norm: bool = False,
        norm: str = "layer",
        norm_epsilon: float = 1e-6,
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mlp_dim = as_whole(mlp_dim, "mlp_dim")
        self.dropout_rate = as_rate(dropout_rate, "dropout_rate")
        self.activation = activation
        self.is_gated = is_gated
        self.use_inner_norm = use_inner_norm
        self.norm = norm
        self.norm_epsilon = norm_epsilon
        self.use_bias = use_bias
        self.supports_masking = True
        self.dropout = self.inner(keras.layers.Dropout, "dropout", dropout_rate)
        norm_class = pick(NORMS, norm, "norm")
        self.inner_norm = None
        if use_inner_norm:
            self.inner_norm = self.inner(norm_class, "inner_norm", norm_epsilon)

    def __setattr__(self, name, value):
        if name == "activation":  # Also one that is set later.
            check_name(ACTIVATIONS, value, name)
        super().__setattr__(name, value)

    def build(self, input_shape):
        width = input_shape[-1]
        self.hidden, self.out = (
            self.inner(
                keras.layers.Dense,
                name,
                units,
                use_bias=self.use_bias,
                bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            )
            for name, units in (
                ("hidden", (1 + self.is_gated) * self.mlp_dim),
                ("out", width),
            )
        )
        self.hidden.build((None, width))
        if self.inner_norm:
            self.inner_norm.build((None, self.mlp_dim))
        self.out.build((None, self.mlp_dim))
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})

    def call(self, tokens, training=None):
        length, width = ops.shape(tokens)[1:]
        tokens = kernels.reshape(tokens, (-1, width))
        activation = self.activation, ACTIVATIONS[self.activation]
        if self.is_gated:
            x = kernels.dense(self.hidden, tokens)  # (B*T, 2M)
            gate, x = ops.split(x, 2, axis=-1)
            x = kernels.activate(*activation, gate, training, self.hidden) * x
        else:
            x = kernels.activate_dense(
                self.hidden, tokens, *activation, training
            )  # (B*T, M)
        x = kernels.call(self.dropout, x, training=training)
        if self.inner_norm:
            x = kernels.call(self.inner_norm, x)
        x = kernels.dense(self.out, x)  # (B*T, D)
        x = kernels.reshape(x, (-1, length, width))  # (B, T, D)
        return kernels.call(self.dropout, x, training=training)
