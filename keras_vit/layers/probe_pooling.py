"""ProbePooling: a learned query that attends to the tokens."""

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.attention import (
    attend,
    check_heads_divide,
    projection,
)
from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy
from keras_vit.layers.pooling_layer import PoolingLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class ProbePooling(PoolingLayer):
    """Let a learned query attend to all tokens.

    Unlike in `AttentionPooling`, the query is not projected, keys and values
    have no biases, and no MLP follows.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), True for the tokens to pool; None for all tokens.
        returns: (B, D).

    Args:
        num_heads: Number of attention heads. Must divide D.

    Reference: Fini et al. 2024, arXiv:2411.14402 (AIMv2); Hugging Face's
        Aimv2AttentionPoolingHead.
    """

    needs = ("num_heads",)

    def __init__(self, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")

    def build(self, input_shape):
        width = input_shape[-1]
        check_heads_divide(width, self.num_heads)
        self.probe = self.add_weight(
            name="probe", shape=(1, width), initializer="glorot_uniform"
        )
        for name, count in (("key_value", 2), ("out", 1)):
            policy = sublayer_policy(self, name)
            layer = projection(width, count, name, policy, name == "out")
            layer.build((None, width))
            setattr(self, name, layer)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})
        self.built = True

    def call(self, tokens, mask=None):
        length, width = ops.shape(tokens)[1:]
        query = ops.cast(self.probe, self.compute_dtype)[None]
        key_value = self.key_value(ops.reshape(tokens, (-1, width)))
        key_value = ops.reshape(key_value, (-1, length, 2 * width))
        key, value = ops.split(key_value, 2, axis=-1)
        x = attend(query, key, value, num_heads=self.num_heads, mask=mask)
        return self.out(ops.reshape(x, (-1, width)))

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dtype": nested_dtype_policy(self),
        }
