"""Which models the code of a checkpoint family can compute."""

import dataclasses
from collections.abc import Collection

from keras_vit.models.config import ViTConfig

# Fields of ViTConfig that the ViT of 2021 has no use for. Most leave no trace
# in the weights, so a family must say that it reads them.
LATER_FIELDS = (
    "use_patch_bias",
    "use_patch_norm",
    "use_distillation_token",
    "num_registers",
    "position_placement",
    "use_prefix_positions",
    "use_embedding_norm",
    "rotary_positions",
    "relative_positions",
    "norm",
    "norm_placement",
    "layer_scale_init",
    "layer_scale_branches",
    "qkv_bias",
    "use_block_bias",
    "qk_norm",
    "use_attention_inner_norm",
    "use_mlp_inner_norm",
    "use_gated_mlp",
    "use_final_norm",
    "pooling_heads",
    "pooling_mlp_dim",
)
# Values of the other fields, as far as they are of later models.
LATER_VALUES = {
    "activation": ("quick", "silu", "relu", "elu"),
    "pooling": ("token_and_avg", "distilled", "prefix", "map_patches", "probe"),
}


def find_inexpressible(
    config: ViTConfig, except_for: Collection[str] = ()
) -> str | None:
    """Return what the code of other libraries cannot compute, or None.

    Args:
        config: Configuration of the model.
        except_for: Fields that the code can compute.

    Example:
        >>> config = dataclasses.replace(
        ...     VARIANTS["B/16"].config, num_registers=4
        ... )
        >>> weights.expressible.find_inexpressible(config)
        'it has no num_registers=4'
    """
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    later = [
        name for name in LATER_FIELDS if getattr(config, name) != defaults[name]
    ]
    later += [
        name
        for name, values in LATER_VALUES.items()
        if getattr(config, name) in values
    ]
    later = [name for name in later if name not in except_for]
    if not later:
        return None
    fields = (f"{name}={getattr(config, name)!r}" for name in later)
    return f"it has no {', '.join(fields)}"
