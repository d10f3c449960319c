"""ClassToken: the learned token that represents the whole image."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
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
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        self.token = self.add_weight(
            name="token", shape=(1, 1, input_shape[-1]), initializer="zeros"
        )
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: input_shape[-1]})
        self.built = True

    def call(self, tokens):
        # Two paddings and a sum are equivalent to a concatenation, but do not
        # repeat the token for each image. So the exported graph has no shape
        # op, and a TFLite delegate can run all of it.
        length = ops.shape(tokens)[1]
        token = ops.pad(self.token, ((0, 0), (0, length), (0, 0)))
        tokens = ops.pad(tokens, ((0, 0), (1, 0), (0, 0)))  # (B, 1 + N, D)
        return tokens + token

    def compute_mask(self, tokens, mask=None):
        if mask is None:
            return None
        return ops.pad(mask, ((0, 0), (1, 0)), constant_values=True)

    def compute_output_shape(self, input_shape):
        batch, length, width = input_shape
        return (batch, None if length is None else 1 + length, width)

    def get_config(self):
        # Keras' automatic config does not support a dtype policy.
        return super().get_config()
