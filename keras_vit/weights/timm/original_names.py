"""Files of the code of DINOv3 and EVA: their names and their constants."""

import dataclasses
import re
from collections.abc import Callable

import ml_dtypes
import numpy as np

from keras_vit.layers.rounded_rotary_positions import rotary_periods
from keras_vit.models.config import ViTConfig

# What an original file has of the weights of an attention, and timm has not.
KEY_MASK = re.compile(r"(.*\.attn\.qkv\.)bias_mask$")
QUERY_OR_VALUE_BIAS = re.compile(r"(.*\.attn\.)([qv])_bias$")


def name_as_timm(shapes: dict[str, tuple]) -> dict[str, tuple]:
    """Return the place of each array by its name in timm, see `Detected`.

    DINOv3 stores biases of queries, keys and values in one array, and its code
    ignores those of the keys. EVA-02 stores the biases of queries and values
    beside their projections, not in them.

    Args:
        shapes: Shapes of the arrays in the file, by name.
    """
    prepared = {name: (name, None) for name in shapes}
    for name in shapes:
        masked = KEY_MASK.match(name)
        if masked and f"{masked[1]}bias" in shapes:
            del prepared[name]
            stored = f"{masked[1]}bias"
            del prepared[stored]
            width = shapes[stored][0] // 3
            prefix = masked[1].removesuffix("qkv.")
            prepared[f"{prefix}q_bias"] = (stored, (slice(0, width),))
            prepared[f"{prefix}v_bias"] = (stored, (slice(2 * width, None),))
        split = QUERY_OR_VALUE_BIAS.match(name)
        if split and f"{split[1]}q_proj.weight" in shapes:
            del prepared[name]
            prepared[f"{split[1]}{split[2]}_proj.bias"] = (name, None)
    return prepared


def settle_periods(config: ViTConfig, read: Callable) -> ViTConfig:
    """Return the configuration with the precision of the periods of DINOv3.

    Its code computes with the periods in its files, which are rounded.

    Args:
        config: The configuration of the model.
        read: Returns an array by its name, see `Layout.settle`.

    Raises:
        ValueError: If these are not the periods of the configuration.
    """
    periods = read("periods")
    kind = config.rotary_positions
    if periods is None:
        return config
    if kind == "centered":
        exact = rotary_periods(config.head_size, config.rotary_temperature)
        rounded = exact.astype(ml_dtypes.bfloat16).astype("float32")
        if periods.shape == exact.shape:
            if np.allclose(periods, exact, rtol=1e-6, atol=0):
                return config
            if np.array_equal(periods, rounded):
                kind = "centered_bfloat16"
                return dataclasses.replace(config, rotary_positions=kind)
    raise ValueError(
        "its rope_embed.periods are not those of a model with "
        f"rotary_positions={kind!r}, num_heads={config.num_heads} and "
        f"rotary_temperature={config.rotary_temperature}"
    )
