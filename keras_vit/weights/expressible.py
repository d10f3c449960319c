"""Which models the code of a checkpoint family can compute."""

from collections.abc import Collection, Mapping

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
# What the ViT of 2021 has of other fields; for one of those above, it is the
# default.
FIRST_VALUES = {
    "activation": ("tanh", "exact"),
    "pooling": ("token", "avg", "max", "map", "none"),
}


def find_inexpressible(
    config: ViTConfig,
    later_fields: Collection[str] = (),
    later_values: Mapping[str, Collection[str]] = {},
) -> str | None:
    """Return what the code of other libraries cannot compute, or None.

    Args:
        config: Configuration of the model.
        later_fields: Fields of later models that the code can compute.
        later_values: The names that it knows, of such fields that are the name
            of a row in a table. So a new row is unknown until it is listed.

    Example:
        >>> import dataclasses
        >>> config = dataclasses.replace(
        ...     VARIANTS["B/16"].config, num_registers=4
        ... )
        >>> weights.expressible.find_inexpressible(config)
        'it has no num_registers=4'
    """
    unknown = []
    for name in (*LATER_FIELDS, *FIRST_VALUES):
        value = getattr(config, name)
        if value in FIRST_VALUES.get(name, (getattr(ViTConfig, name),)):
            continue
        is_name = isinstance(value, str)
        is_known = not is_name or value in later_values.get(name, ())
        if name not in later_fields or not is_known:
            unknown.append(f"{name}={value!r}")
    return f"it has no {', '.join(unknown)}" if unknown else None
