"""MlpBlock: the dense layers of a Transformer block, and ACTIVATIONS."""

import functools
import math

import keras
from keras import ops

from keras_vit.arguments import as_rate, as_whole
from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy
from keras_vit.layers.kernels import (
    call_layer,
    can_fuse,
    fuse,
    is_free_to_change,
    project,
    reshape,
)
from keras_vit.layers.norms import make_norm
from keras_vit.tables import pick


def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    return ops.gelu(x, approximate=True)


def gelu_exact(x):
    """0.5 x (1 + erf(x / sqrt(2)))."""
    return ops.gelu(x, approximate=False)


def gelu_quick(x):
    """Return x sigmoid(1.702 x), the GELU of OpenAI's CLIP."""
    return ops.multiply(x, ops.sigmoid(1.702 * x))


def gelu_in_place(x, approximate: str = "none"):
    """Return GELU(x) in the memory of `x`, in PyTorch.

    So the system need not find new memory for the result, which is the largest
    tensor of a block.

    Args:
        x: A tensor of PyTorch that nobody else reads.
        approximate: "tanh" or "none".
    """
    import torch

    return torch.ops.aten.gelu_(x, approximate=approximate)


def silu(x):
    """Return x sigmoid(x)."""
    return ops.silu(x)


def relu(x):
    """max(x, 0)."""
    return ops.relu(x)


def elu(x):
    """Return x if x > 0, else exp(x) - 1."""
    return ops.elu(x)


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


# "tanh" is the GELU of the official code, "exact" that of timm and Hugging
# Face.
ACTIVATIONS = {
    "tanh": gelu_tanh,
    "exact": gelu_exact,
    "quick": gelu_quick,
    "silu": silu,
    "relu": relu,
    "elu": elu,
}
# Activations that overwrite their input, in PyTorch.
IN_PLACE_ACTIVATIONS = {
    **ACTIVATIONS,
    "tanh": functools.partial(gelu_in_place, approximate="tanh"),
    "exact": gelu_in_place,
}
# Activations that are one operation, which `fuse` would not improve.
SINGLE_OPERATIONS = frozenset({"relu"})
# Activations for training where `fuse` is not used. PyTorch has its own fused
# gradients; JAX uses `fuse` for all but SINGLE_OPERATIONS.
TRAINED_ACTIVATIONS = (
    {**ACTIVATIONS, "tanh": gelu_tanh_written_out}
    if keras.backend.backend() == "tensorflow"
    else ACTIVATIONS
)


def activate_in_training(name: str, x):
    """Return an activation whose gradient will be computed.

    Shapes:
        x: any. returns: the same.

    Args:
        name: A key of ACTIVATIONS.
        x: A tensor.
    """
    if name not in SINGLE_OPERATIONS and can_fuse(x):
        return fuse(_in_float32, activation=ACTIVATIONS[name])(x)
    return TRAINED_ACTIVATIONS[name](x)


def _in_float32(x, *, activation):
    """XLA rounds bfloat16 after each operation, which takes time."""
    return ops.cast(activation(ops.cast(x, "float32")), x.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(keras.layers.Layer):
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
        pick(ACTIVATIONS, activation, "activation")  # Raises if unknown.
        dtype = self.dtype_policy
        self.dropout = keras.layers.Dropout(
            dropout_rate, dtype=dtype, name="dropout"
        )
        self.inner_norm = (
            make_norm(norm, norm_epsilon, dtype=dtype, name="inner_norm")
            if use_inner_norm
            else None
        )

    def build(self, input_shape):
        width = input_shape[-1]
        self.hidden = self._dense((1 + self.is_gated) * self.mlp_dim, "hidden")
        self.out = self._dense(width, "out")
        self.hidden.build((None, width))
        if self.inner_norm:
            self.inner_norm.build((None, self.mlp_dim))
        self.out.build((None, self.mlp_dim))
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})
        self.built = True

    def call(self, tokens, training=None):
        length, width = ops.shape(tokens)[1:]
        tokens = reshape(tokens, (-1, width))
        x = project(self.hidden, tokens)  # (B*T, M) or (B*T, 2M)
        activate = self._choose_activation(tokens, training)
        if self.is_gated:
            gate, x = ops.split(x, 2, axis=-1)
            x = activate(gate) * x  # (B*T, M)
        else:
            x = activate(x)
        x = call_layer(self.dropout, x, training=training)
        if self.inner_norm:
            x = call_layer(self.inner_norm, x)
        x = project(self.out, x)  # (B*T, D)
        x = reshape(x, (-1, length, width))  # (B, T, D)
        return call_layer(self.dropout, x, training=training)

    def _choose_activation(self, tokens, training):
        """Return the function that computes the activation fastest."""
        if training:
            return functools.partial(activate_in_training, self.activation)
        if is_free_to_change(self.hidden, tokens):
            return IN_PLACE_ACTIVATIONS[self.activation]
        return self._activate

    def _activate(self, x):
        """Return the activation of the hidden layer in inference.

        TensorFlow's graph computes MatMul, BiasAdd and GELU in one kernel, if
        they have rank 2, the GELU has its own gradient, and its operations
        have names after those of `hidden` in the alphabet: it sorts the
        factors of a product by their names before it looks for a GELU.
        """
        with keras.name_scope("hidden_activation"):
            return ACTIVATIONS[self.activation](x)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _dense(self, units, name):
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=sublayer_policy(self, name),
            name=name,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "dropout_rate": self.dropout_rate,
            "activation": self.activation,
            "is_gated": self.is_gated,
            "use_inner_norm": self.use_inner_norm,
            "norm": self.norm,
            "norm_epsilon": self.norm_epsilon,
            "use_bias": self.use_bias,
            "dtype": nested_dtype_policy(self),
        }
