"""PatchCorruption: hidden patches become [mask], another patch, or stay."""

import keras
from keras import ops

from keras_vit.pretraining.take_tokens import TakeTokens

MASKED, SWAPPED = 0.8, 0.1  # Shares of the corrupted patches; the rest stays.


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchCorruption(keras.layers.Layer):
    """Corrupt the embeddings of the first patches of an order.

    Of them 80 % become one learned [mask] embedding, 10 % the embedding of
    another patch of the image, and 10 % stay what they are.

    Shapes:
        tokens: (B, N, D), the projected patches, before their positions.
        order: (B, N), see `RandomPatchOrder`.
        returns: (B, N, D).

    Args:
        num_corrupted: Number M of corrupted patches of an image, less than N.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix B.1.2.
    Differs: The paper leaves open where the other patch is from, and whether
        the numbers are exact. Here they are, for each image, rounded.
    """

    def __init__(self, num_corrupted: int, **kwargs):
        super().__init__(**kwargs)
        self.num_corrupted = num_corrupted
        self.take = TakeTokens(dtype=self.dtype_policy)

    @property
    def numbers(self) -> tuple[int, int]:
        """How many patches become [mask], and how many another patch."""
        masked = round(MASKED * self.num_corrupted)
        swapped = round(SWAPPED * self.num_corrupted)
        return masked, min(swapped, self.num_corrupted - masked)

    def build(self, tokens_shape, order_shape):
        if not 0 < self.num_corrupted < tokens_shape[1]:
            raise ValueError(
                "`num_corrupted` must be at least 1 and leave one of the "
                f"{tokens_shape[1]} patches. Received: "
                f"num_corrupted={self.num_corrupted}"
            )
        self.token = self.add_weight(
            name="token",
            shape=(1, 1, tokens_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def call(self, tokens, order):
        masked, swapped = self.numbers
        batch, length, width = ops.shape(tokens)
        drawn = self.take(tokens, order)
        token = ops.cast(self.token, tokens.dtype)
        parts = [
            ops.broadcast_to(token, (batch, masked, width)),
            # The last patches of the order are others than the corrupted ones,
            # as far as there are enough of them.
            drawn[:, length - swapped :],
            drawn[:, masked + swapped :],
        ]
        return self.take(
            ops.concatenate(parts, axis=1), ops.argsort(order, axis=-1)
        )

    def compute_output_spec(self, tokens, order):
        return keras.KerasTensor(tokens.shape, self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "num_corrupted": self.num_corrupted}
