"""The small models and the seeded numbers that tests share."""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="About tf.function; the other backends have static shapes.",
)


# One of each kind of ViT after that of 2021: between them, every part that the
# first has not.
NO_TOKEN = {"use_class_token": False, "pooling": "avg"}
LATER_KINDS = {
    "clip": {
        "use_patch_bias": False,
        "use_embedding_norm": True,
        "activation": "quick",
        "layer_norm_epsilon": 1e-5,
    },
    "zero_shot": {"representation": "unit", "representation_size": 10},
    "deit": {"use_distillation_token": True, "pooling": "distilled"},
    "beit": {
        "position_embedding": "none",
        "relative_positions": "table",
        "qkv_bias": "query_value",
        "layer_scale_init": 0.1,
        "pooling": "avg",
        "use_pooling_norm": True,
    },
    "relative_mlp": {
        "position_embedding": "none",
        "relative_positions": "mlp",
        "relative_hidden_dim": 5,
        "use_shared_relative_positions": True,
        "norm_placement": "after",
        **NO_TOKEN,
    },
    "dinov2": {
        "num_registers": 2,
        "use_prefix_positions": False,
        "layer_scale_init": 0.1,
        "use_gated_mlp": True,
        "activation": "silu",
        "pooling": "token_and_avg",
    },
    "eva02": {
        "rotary_positions": "axial",
        "rotary_reference_size": (16, 16),
        "use_gated_mlp": True,
        "use_mlp_inner_norm": True,
        "use_attention_inner_norm": True,
        "activation": "silu",
        "qkv_bias": "query_value",
    },
    "perception": {
        "rotary_positions": "axial",
        "rotary_axes": "xy",
        "rotary_offset": 1.0,
        "rotary_temperature": 10.0,
        "pooling": "map_patches",
        "pooling_heads": 2,
    },
    "mixed": {"rotary_positions": "mixed", "position_embedding": "none"},
    "dinov3": {
        "position_embedding": "none",
        "rotary_positions": "centered",
        "num_registers": 2,
        "qk_norm": "head",
    },
    "aimv2": {
        "norm": "rms",
        "use_patch_norm": True,
        "use_block_bias": False,
        "qkv_bias": "none",
        "use_gated_mlp": True,
        "activation": "silu",
        **NO_TOKEN,
    },
    "internvit": {"qk_norm": "width", "use_final_norm": False},
}
SAPIENS_2 = {
    "position_embedding": "none",
    "rotary_positions": "centered",
    "num_registers": 2,
    "norm": "rms",
    "qk_norm": "head",
    "layer_scale_init": 0.1,
    "layer_scale_branches": "attention",
    "use_gated_mlp": True,
    "activation": "silu",
}
# Other forms of positions of the first paper, in table 8.
PAPER_POSITIONS = {
    "every_block": {"position_placement": "every_block"},
    "every_block_shared": {"position_placement": "every_block_shared"},
    "relative_keys": {
        "position_embedding": "none",
        "relative_positions": "keys",
    },
}


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


def make(dtype=None, **choices):
    """Return a tiny model, with `choices`, whose weights are all random."""
    return randomize(VisionTransformer(tiny_config(**choices), dtype=dtype))


def to_numpy(x):
    """Return `x` as a float32 or integer numpy array."""
    x = keras.ops.convert_to_numpy(x)
    return x.astype("float32") if x.dtype.kind not in "iub" else x
