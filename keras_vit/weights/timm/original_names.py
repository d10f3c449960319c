"""Names of the files of DINOv3 and EVA, brought to those of timm."""

import re

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
