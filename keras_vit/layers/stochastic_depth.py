"""StochasticDepth: drop a residual branch for some images of the batch."""

import keras

from keras_vit.arguments import as_rate


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(keras.layers.Layer):
    """Zero a residual branch for each image with probability `rate`.

    The kept branches are divided by 1 - rate, so inference needs no scaling.

    Shapes:
        residual: (B, ...). returns: the same.

    Args:
        rate: Probability in [0, 1) of dropping the branch.
        seed: Random seed, an integer or None.

    Reference: Huang et al. 2016, arXiv:1603.09382.
    Differs: big_vision's Mixer does not divide by 1 - rate.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.rate = as_rate(rate, "rate")
        self.seed = seed
        self.supports_masking = True
        self.seed_generator = (
            keras.random.SeedGenerator(seed) if rate > 0 else None
        )
        self.built = True

    def call(self, residual, training=None):
        if not training or self.rate == 0:
            return residual
        return keras.random.dropout(
            residual,
            self.rate,
            noise_shape=(None,) + (1,) * (len(residual.shape) - 1),
            seed=self.seed_generator,
        )

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
