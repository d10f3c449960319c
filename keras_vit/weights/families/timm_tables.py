"""Tables of timm's models: what their files do not show, by architecture.

Source: the model definitions of timm 1.0.31.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.models.config import ViTConfig

# Words of the names of timm's Vision Transformers, beside numbers.
WORDS = frozenset(
    "vit deit deit3 beit beitv2 beit3 eva eva02 aimv2 flexivit naflexvit "
    "samvit test relpos srelpos tiny xsmall small medium mediumd betwixt base "
    "large huge giant giantopt gigantic enormous wee dwee pwee dpwee little "
    "dlittle plus so150m so150m2 so400m intern300m gap map cls clsgap clip "
    "quickgelu siglip dinov2 dinov3 qkvb lingbot sapiens2 tipsv2 radio miil "
    "distilled rope mixed ape rpn xp mci pe core lang spatial par parfac "
    "r r26 r50 resnet26d resnet50d".split()
)
NUMBERS = re.compile(
    r"(patch|reg|p|s|v|vit|relpos)?\d+[bx]?\d*$", re.IGNORECASE
)
USUAL = {
    "activation": "exact",
    "layer_norm_epsilon": 1e-6,
    "norm_placement": "before",
    "rotary_positions": "none",
    "layer_scale_branches": "both",
}
AXIAL = {
    "rotary_positions": "axial",
    "rotary_temperature": 10_000.0,
    "rotary_axes": "yx",
}
# The positions of the patches count from one, or from zero in the largest.
PERCEPTION = {**AXIAL, "rotary_axes": "xy", "rotary_offset": 1.0}
# The architectures of timm's class Eva.
EVA = r"eva_giant_|eva02_|vit_pe_|vit_\w+_(dinov3|lingbot|sapiens2|rope)"
# Patterns of the names of architectures, and their fields that differ from
# USUAL. Later rows have priority.
ARCHITECTURES = (
    (r"vit_\w+_clip_", {"layer_norm_epsilon": 1e-5}),
    (r"(beit3|aimv2|vit_pe)_", {"layer_norm_epsilon": 1e-5}),
    (r"vit_\w+_(dinov3|lingbot)", {"layer_norm_epsilon": 1e-5}),
    (r"vit_\w+_clip_quickgelu_", {"activation": "quick"}),
    (r"vit_base_patch32_siglip_", {"activation": "tanh"}),
    (r"vit_large_patch16_siglip_(gap_)?512", {"activation": "tanh"}),
    (r"vit_so400m_patch16_siglip_", {"activation": "tanh"}),
    (r"vit_giantopt_patch16_siglip_", {"activation": "tanh"}),
    (
        r"naflexvit_\w+_siglip",
        {"activation": "tanh", "position_resize": "bilinear_antialias"},
    ),
    (r"flexivit_|vit_\w+_radio_", {"position_resize": "bilinear"}),
    (r"vit_(base|huge)_\w+_radio_v3", {"position_resize": "official"}),
    (r"naflexvit_\w+_radio_", {"position_resize": "bilinear_square"}),
    (
        r"naflexvit_(base|huge)_\w+_radio_v3",
        {"position_resize": "official_square"},
    ),
    (r"naflexvit_\w+_par_", {"position_resize": "bicubic_antialias_square"}),
    (r"vit_\w+_rpn_", {"norm_placement": "after"}),
    (r"deit3_", {"use_prefix_positions": False}),
    (r"eva02_enormous_", {"norm_placement": "after"}),
    (
        r"eva02_(tiny|small|base|large)_",
        {**AXIAL, "rotary_reference_size": (16, 16)},
    ),
    (
        r"vit_\w+_rope_reg\d_gap_",
        {**AXIAL, "rotary_reference_size": (16, 16)},
    ),
    (
        r"vit_\w+_rope_(ape_)?224",
        {**AXIAL, "rotary_temperature": 100.0, "rotary_axes": "xy"},
    ),
    (r"vit_\w+_rope_mixed_", {"rotary_positions": "mixed"}),
    (
        r"vit_\w+_(dinov3|lingbot|sapiens2)",
        {"rotary_positions": "centered", "rotary_temperature": 100.0},
    ),
    (r"vit_\w+_sapiens2", {"layer_scale_branches": "attention"}),
    (r"vit_pe_", {**PERCEPTION, "rotary_reference_size": (32, 32)}),
    (
        r"vit_pe_core_(tiny|small|large)_",
        {"rotary_reference_size": (24, 24)},
    ),
    (r"vit_pe_core_base_", {"rotary_reference_size": (14, 14)}),
    (r"vit_pe_\w+_gigantic_", {"rotary_offset": 0.0}),
    (r"vit_pe_core_", {"pooling_heads": 8}),
    (r"vit_pe_(lang|spatial)_", {"use_final_norm": False}),
    (r"vit_\w+_radio_|vit_intern300m_", {"use_final_norm": False}),
    (r"naflexvit_\w+_radio_", {"use_final_norm": False}),
    (r"(aimv2|beit(v2|3)?|eva_large)_", {"pooling": "avg"}),
    (r"eva_giant_patch14_\d|test_vit[24]$", {"pooling": "avg"}),
    (r"eva02_(tiny|small|base|large)_patch14_\d", {"pooling": "avg"}),
    (r"\w+(_gap(_|$)|_rpn_|_dinov3)", {"pooling": "avg"}),
    (r"vit_pe_(lang|spatial)_", {"pooling": "avg"}),
    (r"vit_pe_core_", {"pooling": "map"}),
    # Attention pooling reads all tokens, and not only the patches.
    (r"test_vit3$", {"pooling": "map", "pools_prefix_tokens": True}),
    (EVA, {"map_reads_prefix_tokens": True}),
)
# Modules of timm whose models no VisionTransformer computes, and why.
REFUSED = {
    "qwen3": "rotary positions by halves of a head beside a position table, "
    "and a merger of patches or a norm without weights behind its blocks",
    "deepseek": "axial rotary positions by halves of a head, and an MLP "
    "without biases beside attention with biases",
}
# Pattern of the architecture, width, depth and number of heads of those that
# do not have the usual number.
OTHER_HEADS = (
    (r"vit_base_patch16_gap_224$", 768, 12, 16),
    (r"aimv2_", 1024, 24, 8),
    (r"aimv2_", 1536, 24, 12),
    (r"vit_huge_plus_", 1280, 32, 20),
    (r"vit_giantopt_", 1536, 40, 16),
    (r"vit_pe_", 1024, 23, 16),
    (r"vit_pe_", 1536, 47, 16),
    (r"vit_pe_", 1536, 50, 16),
    (r"vit_small_resnet", 768, 8, 8),
)
# The usual number of heads and the depths of each width.
HEADS = {
    64: (2, (6, 8)),
    96: (3, (9,)),
    192: (3, (12,)),
    256: (4, (10, 14, 16)),
    320: (5, (14,)),
    384: (6, (12, 36)),
    512: (8, (12, 20)),
    640: (10, (12,)),
    768: (12, (12,)),
    832: (13, (21,)),
    896: (14, (12, 18)),
    1024: (16, (24,)),
    1152: (16, (27,)),
    1280: (16, (32,)),
    1408: (16, (40,)),
    1536: (24, (40,)),
    1664: (16, (48,)),
    1792: (16, (64,)),
    2048: (16, (24,)),
    3072: (24, (24,)),
    4096: (32, (40,)),
}
ROTARY_KINDS = {"cat": "axial", "mixed": "mixed", "dinov3": "centered"}
# Arguments of timm's models, what `Family.read_hints` calls them, and the
# value, None for no value.
ARGUMENTS = (
    ("rope_rotate_half", "rope_rotate_half", bool),
    ("use_post_norm", "norm_placement", {True: "after", False: "before"}.get),
    ("pool_include_prefix", "pools_prefix_tokens", bool),
    ("rope_grid_indexing", "rotary_axes", {"ij": "yx", "xy": "xy"}.get),
    ("rope_temperature", "rotary_temperature", lambda value: value),
    ("rope_grid_offset", "rotary_offset", lambda value: value),
    ("attn_pool_num_heads", "pooling_heads", lambda value: value),
    ("depth", "depth", lambda value: value),
)


def fields_of(architecture: str) -> dict | None:
    """Return the hints that the name of a model implies, see `read_hints`.

    What follows a point in the name is left out. None if timm has no such
    model.

    Raises:
        ValueError: If no VisionTransformer computes its models.

    Example:
        >>> fields_of("vit_base_patch16_dinov3.lvd1689m")["rotary_positions"]
        'centered'
        >>> fields_of("my_own_vit") is None
        True
    """
    name = architecture.split(".")[0]
    words = name.split("_")
    if words[0] in REFUSED and words[1:2] == ["vit"]:
        raise ValueError(
            f"its architecture {name} has {REFUSED[words[0]]}, which no model "
            "of this package has"
        )
    if not all(word in WORDS or NUMBERS.match(word) for word in words):
        return None
    found = dict(USUAL)
    for pattern, fields in ARCHITECTURES:
        if re.match(pattern, name):
            found |= fields
    return found


def heads_of(
    architecture: str, width: int, depth: int | None = None
) -> int | None:
    """Return the number of heads of an architecture of this size, or None.

    Without a depth it is that of any, as in a model of which an argument
    changes the depth.
    """
    for pattern, *size, heads in OTHER_HEADS:
        fits = size == [width, size[1] if depth is None else depth]
        if fits and re.match(pattern, architecture):
            return heads
    heads, depths = HEADS.get(width, (None, ()))
    return heads if depth is None or depth in depths else None


def is_published_size(width: int, depth: int) -> bool:
    """Return whether timm has a model of this size."""
    sizes = [tuple(size) for _, *size, _ in OTHER_HEADS]
    return (width, depth) in sizes or depth in HEADS.get(width, (0, ()))[1]


def fields_in(arguments: dict) -> dict:
    """Return the hints in the arguments of a model of timm, see `read_hints`.

    Those that names and shapes show as well are left out.

    Raises:
        ValueError: If no VisionTransformer computes what they define.
    """
    found = {}
    if arguments.get("use_rot_pos_emb") is False:
        found["rotary_positions"] = "none"
    elif "rope_type" in arguments:
        kind = arguments["rope_type"]
        if kind not in ROTARY_KINDS:
            raise ValueError(
                f"its configuration has rotary positions of the kind {kind!r}"
            )
        found["rotary_positions"] = ROTARY_KINDS[kind]
    if isinstance(arguments.get("norm_layer"), str):
        # The name of a class, whose default replaces that of the architecture.
        found["layer_norm_epsilon"] = USUAL["layer_norm_epsilon"]
    if arguments.get("attn_only_layer_scale"):
        found["layer_scale_branches"] = "attention"
    for key in ("final_norm", "use_post_transformer_norm"):
        if arguments.get(key) is False:
            found["use_final_norm"] = False
    if "ref_feat_shape" in arguments:
        size = arguments["ref_feat_shape"]
        size = [size, size] if isinstance(size, int) else size
        found["rotary_reference_size"] = size and tuple(size)
    for key, field, read in ARGUMENTS:
        value = arguments.get(key)
        if value is not None and read(value) is not None:
            found[field] = read(value)
    return found


# Parts whose arrays the models of architectures have. A file without one of
# them is incomplete: what is left may be the weights of another model.


class VisiblePart(NamedTuple):
    """A part of a model that names and shapes show."""

    architectures: str  # Pattern of those that have it.
    arguments: tuple[str, ...]  # Of timm's models; they add or remove it.
    is_in: Callable[[ViTConfig], bool]  # Whether a model has it.
    is_added: Callable[[object], bool] = bool  # By the value of an argument.
    # Whether no other architecture that is written has it.
    is_exact: bool = True


def check_parts(
    config: ViTConfig, architecture: str, arguments: dict, is_exact=False
):
    """Raise a ValueError if a model lacks a part of its architecture.

    `arguments` are those that differ from its defaults. If `is_exact`, other
    parts are refused as well, except for a stem.
    """
    for what, part in VISIBLE_PARTS.items():
        is_right = has_part(what, architecture, arguments)
        if is_right and not part.is_in(config):
            raise ValueError(
                f"it has no {what}, unlike timm's {architecture}. If its "
                "model was built without, state the argument in `model_args` "
                "of config.json."
            )
        if is_exact and part.is_exact and not is_right and part.is_in(config):
            raise ValueError(f"its class of this model has no {what}")


def has_part(what: str, architecture: str, arguments: dict) -> bool:
    """Return whether a model of an architecture of timm has a part.

    `what` is a key of VISIBLE_PARTS, and `arguments` are those that differ
    from the defaults.

    Example:
        >>> name = "vit_base_patch14_dinov2"
        >>> has_part("LayerScale", name, {})
        True
        >>> has_part(
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
        is_exact=False,
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
        is_exact=False,
    ),
    "attention pooling": VisiblePart(
        r"\w+_siglip(?!_gap)|\w+_map(_|$)|vit_pe_core|test_vit3$",
        ("global_pool",),
        lambda config: config.pooling.startswith("map"),
        lambda value: value == "map",
    ),
}
