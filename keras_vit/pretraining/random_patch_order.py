"""RandomPatchOrder: chooses the hidden patches of an image."""

import keras
import numpy as np
from keras import ops

# In inference, the pixels of an image choose one of this number of orders.
NUM_FIXED_ORDERS = 64
# Pixels are rounded to this fraction before they are summed: a power of two,
# and a sum of whole numbers, so that the choice never depends on rounding.
STEPS_PER_UNIT = 64


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomPatchOrder(keras.layers.Layer):
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
        >>> order = pretraining.random_patch_order.RandomPatchOrder(9)
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

    def get_config(self):
        return {
            **super().get_config(),
            "num_patches": self.num_patches,
            "seed": self.seed,
        }
