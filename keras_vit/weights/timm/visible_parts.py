"""Parts whose arrays the models of timm's architectures have.

A file without one of them is incomplete: what is left may be the weights of
another model, whose outputs would be wrong.

Source: the model definitions of timm 1.0.31.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.models.config import ViTConfig


class VisiblePart(NamedTuple):
    """A part of a model that names and shapes show.

    Args:
        architectures: Pattern of the architectures that have it.
        arguments: Arguments of timm's models that add or remove it.
        is_in: Returns whether the model of a configuration has it.
        is_added: Returns whether the value of an argument adds it.
    """

    architectures: str
    arguments: tuple[str, ...]
    is_in: Callable[[ViTConfig], bool]
    is_added: Callable[[object], bool] = bool


def check_parts(config: ViTConfig, architecture: str, arguments: dict):
    """Raise a ValueError if a model lacks a part of its architecture.

    Args:
        config: The configuration that a file shows.
        architecture: Name of the architecture in timm.
        arguments: `model_args` of config.json.
    """
    for what, part in VISIBLE_PARTS.items():
        if has_part(what, architecture, arguments) and not part.is_in(config):
            raise ValueError(
                f"it has no {what}, unlike timm's {architecture}. If its "
                "model was built without, state the argument in `model_args` "
                "of config.json."
            )


def has_part(what: str, architecture: str, arguments: dict) -> bool:
    """Return whether a model of an architecture of timm has a part.

    Args:
        what: A key of VISIBLE_PARTS.
        architecture: Name of the architecture, without its tag.
        arguments: Arguments that differ from its defaults.

    Example:
        >>> name = "vit_base_patch14_dinov2"
        >>> weights.timm.visible_parts.has_part("LayerScale", name, {})
        True
        >>> weights.timm.visible_parts.has_part(
        ...     "position table", name, {"pos_embed": "none"}
        ... )
        False
    """
    part = VISIBLE_PARTS[what]
    told = [arguments[key] for key in part.arguments if key in arguments]
    if told:
        return all(map(part.is_added, told))
    return re.match(part.architectures, architecture) is not None


# A pattern of all architectures but some.
WITHOUT = r"(?!{})"
VISIBLE_PARTS = {
    "LayerScale": VisiblePart(
        r"beit(v2)?_|deit3_|test_vit([234]|_relpos)$|vit_intern|"
        r"\w+_(dinov[23]|tipsv2|lingbot|sapiens2|18x2|36x1)|\w+_rope_|"
        r"vit_pe_(lang_|spatial_gigantic)|(naflex)?vit_(base|large)_\w+radio|"
        r"vit_(betwixt|mediumd?)_patch16_(gap|reg)|vit_[dp]*(little|wee)_|"
        r"(naflex)?vit_so150m2_|vit_base_patch(16|32)_plus_2(40|56)|"
        r"vit_s?relpos_(?!\w*rpn)|naflexvit_base_patch16_(gap|map|par)",
        ("init_values",),
        lambda config: config.layer_scale_init is not None,
    ),
    "register tokens": VisiblePart(
        r"\w+_reg\d|test_vit[234]$|\w+_(radio|dinov3|lingbot|sapiens2)|"
        r"naflexvit_base_patch16_(gap|map|par)",
        ("reg_tokens", "num_reg_tokens"),
        lambda config: config.num_registers > 0,
    ),
    "class token": VisiblePart(
        WITHOUT.format(
            r"aimv2|test_vit[234]$|samvit|\w+_siglip|\w+_gap(_|$)|\w+_rpn_|"
            r"\w+_map(_|$)|(vit|test_vit)_s?relpos(?!\w*_cls)|"
            r"vit_pe_\w+_gigantic"
        ),
        ("class_token",),
        lambda config: config.use_class_token,
    ),
    "position table": VisiblePart(
        WITHOUT.format(
            r"\w+_(dinov3|lingbot|sapiens2|rope_(mixed_)?224|rope_reg)|"
            r"beit(v2)?_|(vit|test_vit)_s?relpos|samvit_base_patch16_224"
        ),
        ("use_abs_pos_emb", "pos_embed"),
        lambda config: config.position_embedding != "none",
        lambda value: value not in (False, "none"),
    ),
    "biases of queries": VisiblePart(
        WITHOUT.format(
            r"aimv2|\w+_(miil|xp_)|vit_base_patch16_rpn|"
            r"(vit|test_vit)_s?relpos(?!\w*plus)|"
            r"vit_(betwixt|medium)_patch16_gap|vit_d?pwee|(naflex)?vit_so150m2|"
            r"\w+_dinov3$|vit_giant_\w+lingbot|vit_mediumd_\w+_rope"
        ),
        ("qkv_bias",),
        lambda config: config.qkv_bias != "none",
    ),
    "biases of keys": VisiblePart(
        r"\w+_sapiens2",
        (),
        lambda config: config.qkv_bias in ("all", "none"),
    ),
    "biases of norms": VisiblePart(
        WITHOUT.format(r"aimv2|test_vit4|\w+_(sapiens2|18x2|xp)_?|vit_d?pwee"),
        ("norm_layer",),
        lambda config: config.norm == "layer",
        lambda value: "rms" not in str(value),
    ),
    "norm of the patches": VisiblePart(
        r"aimv2", (), lambda config: config.use_patch_norm
    ),
    "norms of queries and keys": VisiblePart(
        r"\w+_(sapiens2|xp_)",
        ("qk_norm",),
        lambda config: config.qk_norm != "none",
    ),
    "norm inside the attention": VisiblePart(
        r"beit3|eva02_(base|large)_\w+_clip",
        ("scale_attn_norm", "scale_attn_inner"),
        lambda config: config.use_attention_inner_norm,
    ),
    "norm inside the MLP": VisiblePart(
        r"beit3|eva02_(base|large)_",
        ("scale_mlp_norm", "scale_mlp"),
        lambda config: config.use_mlp_inner_norm,
    ),
    "gated MLP": VisiblePart(
        r"aimv2|eva02_(?!enormous)|\w+_sapiens2|vit_giant_\w+(dinov2|tipsv2|lingbot)|"
        r"vit_(small_plus|huge_plus|7b)_patch16_dinov3",
        ("swiglu_mlp",),
        lambda config: config.use_gated_mlp,
    ),
    "convolutional stem": VisiblePart(
        r"vit_\w+_(r|r26|r50|resnet26d|resnet50d)_|vit_base_mci_",
        (),
        lambda config: config.stem_stages is not None,
    ),
    "attention pooling": VisiblePart(
        r"\w+_siglip(?!_gap)|\w+_map(_|$)|vit_pe_core|test_vit3$",
        ("global_pool",),
        lambda config: config.pooling.startswith("map"),
        lambda value: value == "map",
    ),
}
