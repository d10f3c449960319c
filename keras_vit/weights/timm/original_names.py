"""Files of the code of DINO, MAE, EVA and RADIO, read as those of timm."""

import dataclasses
import re
from collections.abc import Callable, Collection

import ml_dtypes
import numpy as np

from keras_vit.layers.rotary import rotary_periods
from keras_vit.models.config import ViTConfig

# Names in original files that the files of timm do not have.
KEY_MASK = re.compile(r"(.*\.attn\.qkv\.)bias_mask$")
RADIO_TOKENS = "patch_generator.cls_token.token"
QUERY_OR_VALUE_BIAS = re.compile(r"(.*\.attn\.)([qv])_bias$")


def name_as_timm(shapes: dict[str, tuple]) -> dict[str, tuple]:
    """Return the place of each array by its name in timm, see `Detected`.

    DINOv3 stores biases of queries, keys and values in one array, and its code
    ignores those of the keys. EVA-02 stores the biases of queries and values
    beside their projections, not in them. RADIO stores class tokens and
    registers in one array.

    Args:
        shapes: Shapes of the arrays in the file, by name.
    """
    prepared = {name: (name, None) for name in shapes}
    for name in shapes:
        if name == RADIO_TOKENS:
            del prepared[name]
            prepared["cls_token"] = (name, (slice(0, 1),))
            prepared["reg_token"] = (name, (slice(1, None),))
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


def resize_of(names: Collection[str]) -> str | None:
    """Return the rule by which the code of a file resizes positions.

    Args:
        names: The names in the file, see `Layout`.

    Returns:
        A key of RESIZES; None if the names do not show it.
    """
    if "decoder_pos_embed" in names:
        return "bicubic"
    shown = {"mask_token", "pos_embed", "blocks.0.ls1.gamma"} <= set(names)
    return "bicubic_offset" if shown and "reg_token" not in names else None


def settle_constants(config: ViTConfig, read: Callable) -> ViTConfig:
    """Return the configuration with the constants in a file.

    The code of DINOv3 computes with the periods in its files, which are
    rounded. RADIO states which class tokens its summary joins.

    Args:
        config: The configuration of the model.
        read: Returns an array by its name, see `Layout.settle`.

    Raises:
        ValueError: If these are not constants of such a model.
    """
    summary = read("summary_idxs")
    if config.pooling == "prefix":
        if summary is None:
            raise ValueError("it lacks summary_idxs.")
        indices = tuple(int(index) for index in summary)
        config = dataclasses.replace(config, pooling_indices=indices)
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
