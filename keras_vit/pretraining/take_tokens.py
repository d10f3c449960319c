"""TakeTokens: chosen tokens of each image."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class TakeTokens(keras.layers.Layer):
    """Take tokens by their indices, which differ between images.

    Shapes:
        tokens: (B, T, ...).
        indices: (B, S), integers from 0 to T - 1.
        returns: (B, S, ...).

    Example:
        >>> tokens = np.array([[[1.0], [2.0], [3.0]]], "float32")
        >>> take = pretraining.take_tokens.TakeTokens()
        >>> np.array(take(tokens, np.array([[2, 0]]))).ravel().tolist()
        [3.0, 1.0]
    """

    def call(self, tokens, indices):
        # One gather of rows: Keras' take_along_axis gathers single numbers.
        batch, length = ops.shape(tokens)[:2]
        rest = tuple(tokens.shape[2:])
        rows = ops.reshape(tokens, (-1, *rest))  # (B*T, ...)
        starts = ops.arange(batch, dtype="int32") * length
        flat = ops.cast(indices, "int32") + ops.expand_dims(starts, -1)
        taken = ops.take(rows, ops.reshape(flat, (-1,)), axis=0)  # (B*S, ...)
        return ops.reshape(taken, (-1, indices.shape[1], *rest))

    def compute_output_spec(self, tokens, indices):
        shape = (tokens.shape[0], indices.shape[1], *tokens.shape[2:])
        return keras.KerasTensor(shape, tokens.dtype)
