"""The small models and the seeded numbers that tests share."""

import keras
import numpy as np
import pytest

from keras_vit import ViTConfig

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="About tf.function; the other backends have static shapes.",
)


def tiny_config(**choices):
    """Return a configuration of 21 thousand parameters, with `choices`."""
    return ViTConfig(
        **{
            "width": 24,
            "depth": 2,
            "mlp_dim": 48,
            "num_heads": 3,
            "patch_size": 8,
            "image_size": 32,
            "num_classes": 7,
            **choices,
        }
    )


def noise(*shape, seed=0, scale=1.0):
    """Return seeded standard normal float32 numbers."""
    draws = np.random.default_rng(seed).standard_normal(shape)
    return (scale * draws).astype("float32")


def randomize(layer, seed=1):
    """Make every weight non-zero, so that zeros hide no mistake.

    A fresh model has zeros (class token, head, biases) that make an answer
    right whatever happens to what they multiply.
    """
    for index, weight in enumerate(layer.weights):
        value = noise(*weight.shape, seed=[seed, index], scale=0.2)
        if weight.path.endswith("gamma"):
            value = 1 + value
        weight.assign(value)
    return layer


def to_numpy(x):
    """Return `x` as a float32 or integer numpy array."""
    x = keras.ops.convert_to_numpy(x)
    return x.astype("float32") if x.dtype.kind not in "iub" else x
