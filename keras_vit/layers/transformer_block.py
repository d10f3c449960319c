"""TransformerBlock: the pre-norm encoder block."""

import functools

import keras

from keras_vit.layers.dtypes import nested_dtype_policy
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.mlp_block import MlpBlock
from keras_vit.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_vit.layers.rematerialization import (
    is_rematerializing,
    rematerialize,
)
from keras_vit.layers.stochastic_depth import StochasticDepth


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(keras.layers.Layer):
    """Add self-attention, then an MLP, each applied to normalised tokens.

    z' = z + MSA(LN(z)), z'' = z' + MLP(LN(z')).

    Shapes:
        tokens: (B, T, D).
        mask: (B, T) or (B, T, T), True where a key may be attended to.
        returns: (B, T, D).

    Args:
        num_heads: Number K of attention heads. Must divide D.
        mlp_dim: Hidden size of the MLP.
        dropout_rate: Dropout rate after the attention and in the MLP.
        attention_dropout_rate: Dropout rate of the attention probabilities.
        stochastic_depth_rate: Probability of dropping each branch.
        gelu: "tanh" or "exact", see `MlpBlock`.
        layer_norm_epsilon: Added to the variance. Keras' own default is 1e-3.
        use_remat: Whether training keeps only the input of the block and
            computes the rest again in the backward pass.

    Example:
        >>> block = TransformerBlock(num_heads=3, mlp_dim=48)
        >>> tuple(block(np.ones((2, 17, 24))).shape)
        (2, 17, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, eqs. 2 and 3.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        stochastic_depth_rate: float = 0.0,
        gelu: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        use_remat: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.stochastic_depth_rate = stochastic_depth_rate
        self.gelu = gelu
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_remat = use_remat
        self.supports_masking = True

        dtype = self.dtype_policy
        self.attention_norm = LayerNorm(
            layer_norm_epsilon, dtype=dtype, name="attention_norm"
        )
        self.attention = MultiHeadSelfAttention(
            num_heads, attention_dropout_rate, dtype=dtype, name="attention"
        )
        self.dropout = keras.layers.Dropout(
            dropout_rate, dtype=dtype, name="dropout"
        )
        self.mlp_norm = LayerNorm(
            layer_norm_epsilon, dtype=dtype, name="mlp_norm"
        )
        self.mlp = MlpBlock(
            mlp_dim, dropout_rate, gelu, dtype=dtype, name="mlp"
        )
        self.stochastic_depth = StochasticDepth(
            stochastic_depth_rate, dtype=dtype, name="stochastic_depth"
        )

    def build(self, input_shape):
        for layer in (
            self.attention_norm,
            self.attention,
            self.mlp_norm,
            self.mlp,
        ):
            layer.build(input_shape)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: input_shape[-1]})
        self.built = True

    def call(self, tokens, mask=None, training=None):
        if self.use_remat and training and not is_rematerializing():
            call = functools.partial(self.call, mask=mask, training=True)
            return rematerialize(self, call, tokens)
        attended = self.attention(
            self.attention_norm(tokens), mask=mask, training=training
        )
        attended = self.dropout(attended, training=training)
        tokens = tokens + self.stochastic_depth(attended, training=training)
        mixed = self.mlp(self.mlp_norm(tokens), training=training)
        return tokens + self.stochastic_depth(mixed, training=training)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_mask(self, tokens, mask=None):
        return self.attention.compute_mask(tokens, mask)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "stochastic_depth_rate": self.stochastic_depth_rate,
            "gelu": self.gelu,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "use_remat": self.use_remat,
            "dtype": nested_dtype_policy(self),
        }
