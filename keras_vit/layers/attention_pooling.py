"""AttentionPooling: a learned probe that attends to the tokens."""

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.attention import (
    attend,
    check_heads_divide,
    projection,
)
from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.mlp_block import MlpBlock
from keras_vit.layers.old_arguments import with_new_names
from keras_vit.layers.pooling_layer import PoolingLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(PoolingLayer):
    """Let a learned probe attend to all tokens, then add an MLP (MAP head).

    z = MHA(probe, tokens, tokens), returns z + MLP(LN(z)).

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), True for the tokens to pool; None for all tokens.
        returns: (B, D).

    Args:
        num_heads: Number of attention heads. Must divide D.
        mlp_dim: Hidden size of the MLP.
        activation: A key of ACTIVATIONS, see `MlpBlock`.
        layer_norm_epsilon: Added to the variance.

    Reference: Zhai et al. 2022, arXiv:2106.04560, section 3.2; Lee et al.
        2019, arXiv:1810.00825; big_vision's MAPHead.
    """

    needs = ("num_heads", "mlp_dim", "activation", "layer_norm_epsilon")

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        activation: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")
        self.mlp_dim = as_whole(mlp_dim, "mlp_dim")
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm = LayerNorm(
            layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.mlp = MlpBlock(
            mlp_dim,
            activation=activation,
            dtype=self.dtype_policy,
            name="mlp",
        )

    def build(self, input_shape):
        width = input_shape[-1]
        check_heads_divide(width, self.num_heads)
        self.probe = self.add_weight(
            name="probe", shape=(1, width), initializer="glorot_uniform"
        )
        for name, count in (("query", 1), ("key_value", 2), ("out", 1)):
            layer = projection(width, count, name, sublayer_policy(self, name))
            layer.build((None, width))
            setattr(self, name, layer)
        self.norm.build((None, 1, width))
        self.mlp.build((None, 1, width))
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})
        self.built = True

    def call(self, tokens, mask=None):
        length, width = ops.shape(tokens)[1:]
        query = self.query(ops.cast(self.probe, self.compute_dtype))[None]
        key_value = self.key_value(ops.reshape(tokens, (-1, width)))
        key_value = ops.reshape(key_value, (-1, length, 2 * width))
        key, value = ops.split(key_value, 2, axis=-1)
        x = attend(query, key, value, num_heads=self.num_heads, mask=mask)
        x = self.out(ops.reshape(x, (-1, width)))  # (B, D)
        residual = self.mlp(self.norm(x)[:, None])  # (B, 1, D)
        return x + ops.reshape(residual, (-1, width))

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "dtype": nested_dtype_policy(self),
        }

    @classmethod
    def from_config(cls, config):
        return super().from_config(with_new_names(config))
