"""Layers that hide patches of an image."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import Layer
from keras_vit.layers.fewer_tokens import TakeTokens

# In inference, the pixels of an image choose one of this number of orders.
NUM_FIXED_ORDERS = 64
# Pixels are rounded to this fraction before they are summed: a power of two,
# and a sum of whole numbers, so that the choice never depends on rounding.
STEPS_PER_UNIT = 64


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomPatchOrder(Layer):
    """Draw an order of the patches of each image; the first ones are hidden.

    In training, each call draws new orders. In inference, the order depends
    on the pixels of the image alone, so the loss of a validation set depends
    neither on the batches nor on the devices that they are shared out to.

    Shapes:
        images: (B, H, W, C).
        returns: (B, N), integers: a permutation of 0 ... N - 1 for each image.

    Args:
        num_patches: Number N of patches.
        seed: Seed of the orders in training, an integer or None.

    Example:
        >>> order = pretraining.masking.RandomPatchOrder(9)
        >>> sorted(np.array(order(np.ones((1, 6, 6, 3))))[0].tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    def __init__(self, num_patches: int, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.num_patches = num_patches
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        draws = np.random.default_rng(0)
        rows = [draws.permutation(num_patches) for _ in range(NUM_FIXED_ORDERS)]
        self._fixed = np.stack(rows).astype("int32")
        self.built = True

    def call(self, images, training=None):
        if training:
            batch = ops.shape(images)[0]
            noise = keras.random.uniform(
                (batch, self.num_patches),
                dtype="float32",
                seed=self.seed_generator,
            )
            return ops.cast(ops.argsort(noise, axis=-1), "int32")
        steps = ops.round(ops.cast(images, "float32") * STEPS_PER_UNIT)
        total = ops.sum(ops.cast(steps, "int32"), axis=(1, 2, 3))  # (B,)
        chosen = ops.mod(total, NUM_FIXED_ORDERS)
        return ops.take(ops.convert_to_tensor(self._fixed), chosen, axis=0)

    def compute_output_spec(self, images, training=None):
        return keras.KerasTensor((images.shape[0], self.num_patches), "int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskTokens(Layer):
    """Prepend one learned token several times.

    Shapes:
        tokens: (B, T, D).
        returns: (B, M + T, D); the learned ones come first.

    Args:
        num_tokens: Number M of equal tokens.

    Example:
        >>> layer = pretraining.masking.MaskTokens(3)
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

    def call(self, tokens):
        shape = (ops.shape(tokens)[0], self.num_tokens, tokens.shape[-1])
        token = ops.cast(self.token, tokens.dtype)
        return ops.concatenate([ops.broadcast_to(token, shape), tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, length, width = input_shape
        return (batch, length + self.num_tokens, width)


MASKED, SWAPPED = 0.8, 0.1  # Shares of the corrupted patches; the rest stays.


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchCorruption(Layer):
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
