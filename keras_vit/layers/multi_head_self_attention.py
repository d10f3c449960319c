"""MultiHeadSelfAttention: every token attends to every token."""

import functools

import keras
from keras import ops

from keras_vit.layers.attention import attend, check_heads_divide, projection
from keras_vit.layers.dtypes import nested_dtype_policy, sublayer_policy


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(keras.layers.Layer):
    """Let every token attend to every token, in several heads.

    One matrix product computes queries, keys and values. The softmax is
    computed in float32 with every compute dtype. To get the attention
    probabilities, call `keras_vit.models.intermediates.attend_with_scores`.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T) or (B, T, T), True where a key may be attended to.
        returns: (B, T, D).

    Args:
        num_heads: Number K of heads. Must divide D.
        dropout_rate: Dropout rate of the attention probabilities.

    Raises:
        ValueError: If `num_heads` does not divide the width D.

    Example:
        >>> layer = MultiHeadSelfAttention(num_heads=3)
        >>> tuple(layer(np.ones((2, 5, 24))).shape)
        (2, 5, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix A.
    """

    def __init__(self, num_heads: int, dropout_rate: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.supports_masking = True
        self.dropout = keras.layers.Dropout(
            dropout_rate, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, input_shape):
        width = input_shape[-1]
        check_heads_divide(width, self.num_heads)
        self.qkv = projection(width, 3, "qkv", sublayer_policy(self, "qkv"))
        self.out = projection(width, 1, "out", sublayer_policy(self, "out"))
        self.qkv.build((None, width))
        self.out.build((None, width))
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})
        self.built = True

    def call(self, tokens, mask=None, training=None):
        query, key, value = self.compute_qkv(tokens)  # (B, T, D) each
        x, _ = attend(
            query,
            key,
            value,
            num_heads=self.num_heads,
            mask=mask,
            dropout=functools.partial(self.dropout, training=training),
        )
        return self.project_out(x)  # (B, T, D)

    def compute_qkv(self, tokens):
        """Return the queries, keys and values of all heads.

        Shapes:
            tokens: (B, T, D). returns: three of (B, T, D).
        """
        length, width = ops.shape(tokens)[1:]
        qkv = self.qkv(ops.reshape(tokens, (-1, width)))  # (B*T, 3D)
        qkv = ops.reshape(qkv, (-1, length, 3 * width))  # (B, T, 3D)
        return ops.split(qkv, 3, axis=-1)

    def project_out(self, x):
        """Return the output of the layer for the joined outputs of its heads.

        Shapes:
            x: (B, S, D). returns: the same.
        """
        length, width = ops.shape(x)[1:]
        y = self.out(ops.reshape(x, (-1, width)))  # (B*S, D)
        return ops.reshape(y, (-1, length, width))  # (B, S, D)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def compute_mask(self, tokens, mask=None):
        return mask if mask is not None and len(mask.shape) == 2 else None

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout_rate,
            "dtype": nested_dtype_policy(self),
        }
