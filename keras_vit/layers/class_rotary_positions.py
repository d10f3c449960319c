"""ClassRotaryPositions: axial angles, and learned ones of the class token."""

import keras
from keras import ops

from keras_vit.layers.axial_rotary_positions import AxialRotaryPositions
from keras_vit.layers.calling import pad


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassRotaryPositions(AxialRotaryPositions):
    """Angles of `AxialRotaryPositions`, and learned ones of the first token.

    Attention pairs the features of the first half of a head with those of the
    second.

    Reference: An et al. 2024, arXiv:2407.17331 (MLCD); Hugging Face's
        MLCDVisionModel.
    """

    needs = ("rotary_temperature",)
    pairs = "halves"
    needed_token = "class"

    def build(self, tokens_shape, features_shape=None):
        self.class_angles = self.add_weight(
            name="class_angles",
            shape=(1, self.head_size // 2),
            initializer="zeros",
        )
        self.built = True

    def add_prefix(self, angles):
        first = ops.zeros_like(angles[:, :1])
        first = first + ops.cast(self.class_angles, "float32")
        others = ((0, 0), (self.num_prefix_tokens - 1, 0), (0, 0), (0, 0))
        return ops.concatenate([first, pad(angles, others)], axis=1)
