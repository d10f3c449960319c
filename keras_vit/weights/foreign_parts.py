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


def foreign_format(names: Iterable[str]) -> str | None:
    """Return what a file of a library is whose names are not read, or None.

    Args:
        names: Names of arrays in the file.
    """
    for pattern, what in FOREIGN_FORMATS.items():
        found = next(
            (n for n in names if re.search(rf"(^|\.){pattern}", n)), None
        )
        if found:
            return f"{what}, whose names are not read ({found})"
    return None


# Pattern of a name that models of one library alone have, and its description.
FOREIGN_FORMATS = {
    r"encoder\.layers\.encoder_layer_0\.": "a ViT of torchvision",
    r"layers\.0\.(ffn\.layers\.0\.0|ln1)\.weight$": "a ViT of MMPretrain",
    r"to_patch_embedding\.": "a ViT of vit-pytorch",
    r"layers\.0\.blocks\.0\.attn\.relative_position_bias_table$": (
        "a Swin Transformer"
    ),
    # Not that of a hybrid, patch_embed.backbone.
    r"(?<!patch_embed\.backbone\.)layer1\.0\.conv1\.weight$": "a ResNet",
}
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
    (r"trunk_head\.mlp", "a projection with an MLP"),
    (r"decoder", "a decoder of masked patches"),
    (r"txt|text", "a text tower"),
)
