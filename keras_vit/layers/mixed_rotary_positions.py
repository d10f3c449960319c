"""MixedRotaryPositions: learned angles for each head."""

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.rotary_positions import RotaryPositions


@keras.saving.register_keras_serializable(package="keras_vit")
class MixedRotaryPositions(RotaryPositions):
    """Learned angles, each from the row and the column, for each head.

    The angle of a patch in column x and row y is x f + y g, with learned f and
    g for each head and pair of features.

    Args:
        num_heads: Number K of heads.

    Reference: Heo et al. 2024, arXiv:2403.13298, section 3 (RoPE-Mixed).
    """

    needs = ("num_heads",)
    is_shared = False

    def __init__(self, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")

    def build(self, tokens_shape, features_shape=None):
        shape = (2, self.num_heads, self.head_size // 2)
        self.frequency = self.add_weight(
            name="frequency",
            shape=shape,
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def angles(self, y, x, sizes):
        frequency = ops.cast(self.frequency, "float32")
        x_frequency, y_frequency = ops.unstack(frequency, 2)  # (K, E/2)
        x = x[..., None, None] * x_frequency
        return x + y[..., None, None] * y_frequency

    def compute_output_shape(self, tokens_shape, features_shape=None):
        return (2, tokens_shape[1], self.num_heads, self.head_size)

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}
