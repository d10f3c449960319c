"""The position inputs of attention: rotations and relative positions.

Separate layers compute both. They are further inputs of the blocks, in
addition to the tokens.
"""

import dataclasses

from keras_vit.layers.choosing import make_chosen
from keras_vit.layers.position_kinds import make_position_embedding
from keras_vit.layers.relative_positions import RELATIVE_POSITIONS
from keras_vit.layers.rotary_kinds import ROTARY_POSITIONS


def position_templates(config) -> dict[str, str]:
    """Return the names of layers by the arguments of a block that they compute.

    A layer that all blocks share has its own name; another one has a field for
    the index of the block.

    Args:
        config: The configuration of the model.
    """
    names = {}
    if rotary := ROTARY_POSITIONS[config.rotary_positions]:
        names["rotation"] = _template("rotary_positions", rotary.is_shared)
    if relative := RELATIVE_POSITIONS[config.relative_positions]:
        is_shared = config.use_shared_relative_positions
        names[relative.argument] = _template("relative_positions", is_shared)
    if config.position_placement != "stem":
        is_shared = config.position_placement == "every_block_shared"
        names["position_rows"] = _template("position_embedding", is_shared)
    return names


def position_layers(config) -> list[dict[str, str]]:
    """Return the names of the layers that feed each block, by argument.

    Args:
        config: The configuration of the model.

    Example:
        >>> config = VARIANTS["Ti/16"].config
        >>> config = dataclasses.replace(
        ...     config, depth=2, rotary_positions="axial",
        ...     relative_positions="table",
        ... )
        >>> for row in models.position_inputs.position_layers(config):
        ...     print(row)
        {'rotation': 'rotary_positions', 'bias': 'relative_positions_00'}
        {'rotation': 'rotary_positions', 'bias': 'relative_positions_01'}
    """
    names = position_templates(config).items()
    return [
        {argument: name.format(i=index) for argument, name in names}
        for index in range(config.depth)
    ]


def connect_positions(config, tokens, features, dtype) -> list[dict]:
    """Return the position inputs of each block: tensors, by argument.

    Args:
        config: The configuration of the model.
        tokens: The input of the first block.
        features: The images or the feature maps that were cut into patches.
        dtype: Dtype policy of the layers.
    """
    tensors = {}
    rows = position_layers(config)
    for argument, name in (item for row in rows for item in row.items()):
        if name not in tensors:
            layer = MAKERS[argument](config, name, dtype)
            is_dynamic = config.use_dynamic_image_size
            inputs = (tokens, features) if is_dynamic else (tokens,)
            tensors[name] = layer(*inputs)
    return [{key: tensors[name] for key, name in row.items()} for row in rows]


def _template(name, is_shared):
    return name if is_shared else name + "_{i:02d}"


def _make_rotary(config, name, dtype=None):
    return make_chosen(
        ROTARY_POSITIONS,
        config.rotary_positions,
        "rotary_positions",
        dataclasses.asdict(config),
        grid_size=config.grid_size,
        head_size=config.head_size,
        num_prefix_tokens=config.num_prefix_tokens,
        patch_size=config.patch_size,
        dtype=dtype,
        name=name,
    )


def _make_relative(config, name, dtype=None):
    return make_chosen(
        RELATIVE_POSITIONS,
        config.relative_positions,
        "relative_positions",
        dataclasses.asdict(config),
        grid_size=config.grid_size,
        num_heads=config.num_heads,
        num_prefix_tokens=config.num_prefix_tokens,
        dtype=dtype,
        name=name,
    )


def _make_rows(config, name, dtype=None):
    return make_position_embedding(
        config.position_embedding,
        grid_size=config.grid_size,
        num_prefix_tokens=config.num_prefix_tokens,
        patch_size=config.patch_size,
        resize=config.position_resize,
        returns_rows=True,
        dtype=dtype,
        name=name,
    )


MAKERS = {
    "rotation": _make_rotary,
    "bias": _make_relative,
    "relative_keys": _make_relative,
    "position_rows": _make_rows,
}
