"""MlpBlock: the dense layers of a Transformer block."""

import functools

import keras
from keras import ops

from keras_vit.arguments import as_rate, as_whole
from keras_vit.layers.activations import (
    ACTIVATIONS,
    IN_PLACE_ACTIVATIONS,
    activate_in_training,
)
from keras_vit.layers.calling import (
    call_layer,
    is_free_to_change,
    project,
    reshape,
)
from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy
from keras_vit.layers.norms import make_norm
from keras_vit.layers.old_arguments import with_new_names
from keras_vit.tables import pick


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

    @classmethod
    def from_config(cls, config):
        return super().from_config(with_new_names(config))
