"""MaskTokens: the learned token that stands for each hidden patch."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskTokens(keras.layers.Layer):
    """Prepend one learned token several times.

    Shapes:
        tokens: (B, T, D).
        returns: (B, M + T, D); the learned ones come first.

    Args:
        num_tokens: Number M of equal tokens.

    Example:
        >>> layer = pretraining.mask_tokens.MaskTokens(3)
        >>> tuple(layer(np.ones((2, 4, 8))).shape)
        (2, 7, 8)

    Reference: He et al. 2021, arXiv:2111.06377, section 3; initialised as in
        its code, normal with deviation 0.02.
    """

    def __init__(self, num_tokens: int, **kwargs):
        super().__init__(**kwargs)
        self.num_tokens = num_tokens

    def build(self, input_shape):
        self.token = self.add_weight(
            name="token",
            shape=(1, 1, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def call(self, tokens):
        shape = (ops.shape(tokens)[0], self.num_tokens, tokens.shape[-1])
        token = ops.cast(self.token, tokens.dtype)
        return ops.concatenate([ops.broadcast_to(token, shape), tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, length, width = input_shape
        return (batch, length + self.num_tokens, width)

    def get_config(self):
        return {**super().get_config(), "num_tokens": self.num_tokens}
