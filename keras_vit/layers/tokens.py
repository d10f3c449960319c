"""Learned tokens that stand before the patches."""

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers import kernels


@keras.saving.register_keras_serializable(package="keras_vit")
class PrefixTokens(keras.layers.Layer):
    """Prepend learned tokens, which are the same for every image.

    They are registers, a distillation token, or a class token (`ClassToken`).

    Shapes:
        tokens: (B, T, D).
        returns: (B, R + T, D); the learned tokens come first.

    Args:
        num_tokens: Number R of tokens.

    Raises:
        ValueError: If `num_tokens` is not positive.

    Example:
        >>> tuple(PrefixTokens(num_tokens=4)(np.ones((2, 16, 24))).shape)
        (2, 20, 24)

    Reference: Darcet et al. 2024, arXiv:2309.16588, for registers; Touvron et
        al. 2021, arXiv:2012.12877, for the distillation token.
    """

    def __init__(self, num_tokens: int, **kwargs):
        super().__init__(**kwargs)
        self.num_tokens = as_whole(num_tokens, "num_tokens")
        self.supports_masking = True

    def build(self, input_shape):
        width = input_shape[-1]
        self.token = self.add_weight(
            name="token",
            shape=(1, self.num_tokens, width),
            initializer=self.make_initializer(),
        )
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})
        self.built = True

    def make_initializer(self):
        """Return the initializer of the tokens."""
        return keras.initializers.TruncatedNormal(stddev=0.02)

    def call(self, tokens):
        # Two paddings and a sum are equivalent to a concatenation, but do not
        # repeat the token for each image. So the exported graph has no shape
        # op, and a TFLite delegate can run all of it.
        length = ops.shape(tokens)[1]
        token = kernels.pad(self.token, ((0, 0), (0, length), (0, 0)))
        tokens = kernels.pad(tokens, ((0, 0), (self.num_tokens, 0), (0, 0)))
        return tokens + token  # (B, R + T, D)

    def compute_mask(self, tokens, mask=None):
        if mask is None:
            return None
        padding = ((0, 0), (self.num_tokens, 0))
        return ops.pad(mask, padding, constant_values=True)

    def compute_output_shape(self, input_shape):
        batch, length, width = input_shape
        if length is not None:
            length += self.num_tokens
        return (batch, length, width)

    def get_config(self):
        return {**super().get_config(), "num_tokens": self.num_tokens}


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(PrefixTokens):
    """Prepend a learned token to the patch tokens.

    Shapes:
        tokens: (B, N, D).
        returns: (B, 1 + N, D); the class token has index 0.

    Example:
        >>> tuple(ClassToken()(np.ones((2, 16, 24))).shape)
        (2, 17, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, eq. 1;
        zero-initialised as in the official code.
    """

    def __init__(self, **kwargs):
        super().__init__(num_tokens=1, **kwargs)

    def make_initializer(self):
        return "zeros"

    def get_config(self):
        config = super().get_config()
        del config["num_tokens"]
        return config
