"""LayerScale: a learned factor for each feature of a branch."""

import keras
from keras import ops

from keras_vit.arguments import as_number


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(keras.layers.Layer):
    """Multiply each feature by a learned number.

    A block with small factors begins near the identity, so deep models train
    more steadily.

    Shapes:
        tokens: (..., D). returns: the same.

    Args:
        initial_value: The factors of a new layer.

    Example:
        >>> float(layers.LayerScale(initial_value=0.5)(np.ones((1, 3)))[0, 0])
        0.5

    Reference: Touvron et al. 2021, arXiv:2103.17239, section 2.
    """

    def __init__(self, initial_value: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = as_number(initial_value, "initial_value")
        self.supports_masking = True

    def build(self, input_shape):
        self.scale = self.add_weight(
            name="scale",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )
        self.built = True

    def call(self, tokens):
        return tokens * ops.cast(self.scale, tokens.dtype)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {**super().get_config(), "initial_value": self.initial_value}
