"""FOREIGN_PARTS: names of arrays that a VisionTransformer does not have."""

import re
from collections.abc import Iterable


def foreign_parts(names: Iterable[str]) -> list[str]:
    """Return the foreign parts of a model, each with the name of an array.

    Args:
        names: Names of arrays in a file.

    Example:
        >>> foreign_parts(["head.weight", "blocks.0.ls1.gamma"])
        ['LayerScale (blocks.0.ls1.gamma)']
    """
    names = list(names)
    return [
        f"{what} ({found})"
        for pattern, what in FOREIGN_PARTS
        for found in [next((n for n in names if re.search(pattern, n)), None)]
        if found
    ]


# Pattern of a name, and the part of the model that the array belongs to.
FOREIGN_PARTS = (
    (r"dist_token|distillation_token|head_dist", "a distillation token"),
    (r"reg_token|register_token", "register tokens"),
    (r"\bls[12]\b|layer_scale|lambda_?[12]|gamma_[12]", "LayerScale"),
    (r"\b[qk]_norm\b|query_norm|key_norm", "a norm of queries and keys"),
    (r"norm_pre\b|ln_pre\b", "a norm before the first block"),
    (r"rel_pos_[hw]$", "attention in windows"),
    (r"rel_pos(?!_[hw]$)|relative_position", "relative positions"),
    (r"lambda_[qk][12]|sub_norm", "differential attention"),
    (r"\bin_proj\.|_out_proj\.|\battns\.\d", "parallel blocks"),
    (r"backbone\.(\d|conv1\.\d)", "a convolutional stem"),
    (r"^neck\.", "a neck of convolutions"),
    (r"rope|freqs", "rotary positions"),
    (r"w12|fc1_g|swiglu|weights_in", "a gated MLP"),
    (r"lora_", "LoRA adapters alone, without the model"),
    (r"decoder", "a decoder of masked patches"),
    (r"txt|text", "a text tower"),
)
