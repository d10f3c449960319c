"""Poolings, which turn the tokens of an image into one vector."""

import keras
from keras import ops

from keras_vit.layers.attention import (
    attend,
    check_heads_divide,
    projection,
)
from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.mlp_block import MlpBlock
from keras_vit.tables import pick


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(keras.layers.Layer):
    """Take the class token.

    Shapes:
        tokens: (B, T, D). returns: (B, D).

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 4.
    """

    needs = ()

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, tokens, mask=None):
        return None

    def call(self, tokens):
        # TFLite delegates run a slice and a reshape, but not the strided
        # slice of `tokens[:, 0]`.
        return ops.reshape(tokens[:, :1], (-1, tokens.shape[-1]))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        # Keras' automatic config does not support a dtype policy.
        return super().get_config()


class PatchPooling(keras.layers.Layer):
    """Reduce the patch tokens to one vector; prefix tokens are ignored.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), True for the tokens to pool; None for all tokens.
        returns: (B, D).

    Args:
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
    """

    needs = ("num_prefix_tokens",)

    def __init__(self, num_prefix_tokens: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens
        self.supports_masking = True

    def call(self, tokens, mask=None):
        tokens = tokens[:, self.num_prefix_tokens :]
        if mask is not None:
            mask = ops.cast(mask, "bool")[:, self.num_prefix_tokens :, None]
        return self.pool(tokens, mask)

    def pool(self, tokens, mask):
        """Return (B, D) from the patches (B, N, D), mask (B, N, 1) or None."""
        raise NotImplementedError

    def compute_mask(self, tokens, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_prefix_tokens": self.num_prefix_tokens,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AveragePooling(PatchPooling):
    """Average the patch tokens in float32, as `gap` of the official code."""

    def pool(self, tokens, mask):
        x = ops.cast(tokens, "float32")
        if mask is None:
            x = ops.mean(x, axis=1)
        else:
            mask = ops.cast(mask, x.dtype)
            x = ops.sum(x * mask, axis=1) / ops.maximum(
                ops.sum(mask, axis=1), 1
            )
        return ops.cast(x, tokens.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaxPooling(PatchPooling):
    """Take the largest value of each feature over the patch tokens."""

    def pool(self, tokens, mask):
        if mask is not None:
            # The lowest finite number of float16 keeps the result finite.
            tokens = ops.where(mask, tokens, -65504.0)
        return ops.max(tokens, axis=1)


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(keras.layers.Layer):
    """Let a learned probe attend to all tokens, then add an MLP (MAP head).

    z = MHA(probe, tokens, tokens), returns z + MLP(LN(z)).

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), True for the tokens to pool; None for all tokens.
        returns: (B, D).

    Args:
        num_heads: Number of attention heads. Must divide D.
        mlp_dim: Hidden size of the MLP.
        gelu: "tanh" or "exact", see `MlpBlock`.
        layer_norm_epsilon: Added to the variance.

    Reference: Zhai et al. 2022, arXiv:2106.04560, section 3.2; Lee et al.
        2019, arXiv:1810.00825; big_vision's MAPHead.
    """

    needs = ("num_heads", "mlp_dim", "gelu", "layer_norm_epsilon")

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        gelu: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.gelu = gelu
        self.layer_norm_epsilon = layer_norm_epsilon
        self.supports_masking = True
        self.norm = LayerNorm(
            layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.mlp = MlpBlock(
            mlp_dim, gelu=gelu, dtype=self.dtype_policy, name="mlp"
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
        x, _ = attend(query, key, value, num_heads=self.num_heads, mask=mask)
        x = self.out(ops.reshape(x, (-1, width)))  # (B, D)
        residual = self.mlp(self.norm(x)[:, None])  # (B, 1, D)
        return x + ops.reshape(residual, (-1, width))

    def compute_mask(self, tokens, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "gelu": self.gelu,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "dtype": nested_dtype_policy(self),
        }


def make_pooling(kind: str, choices: dict, **kwargs):
    """Return the layer of `kind`, or None for "none".

    Args:
        kind: A key of POOLINGS.
        choices: The fields of ViTConfig and `num_prefix_tokens`; the layer
            gets the entries that its `needs` lists.
        **kwargs: Further arguments of the layer, such as `name`.
    """
    layer_class = pick(POOLINGS, kind, "pooling")
    if layer_class is None:
        return None
    needs = {name: choices[name] for name in layer_class.needs}
    return layer_class(**needs, **kwargs)


# Name -> layer, or None to return all tokens. The `needs` of a layer lists the
# fields of ViTConfig that its constructor takes.
POOLINGS = {
    "token": TokenPooling,
    "avg": AveragePooling,
    "max": MaxPooling,
    "map": AttentionPooling,
    "none": None,
}
