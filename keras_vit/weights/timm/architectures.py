"""Settings of timm's models that their files do not show, by architecture.

Source: the model definitions of timm 1.0.31.
"""

import re

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
# Pattern of the architecture, width, depth and number of heads. The first row
# that fits counts, so a model of another width has none.
HEADS_BY_SIZE = (
    (r"vit_base_patch16_gap_224$", 768, 12, 16),
    (r"aimv2_", 1024, 24, 8),
    (r"aimv2_", 1536, 24, 12),
    (r"vit_huge_plus_", 1280, 32, 20),
    (r"vit_giantopt_", 1536, 40, 16),
    (r"vit_pe_", 1536, 47, 16),
    (r"vit_pe_", 1536, 50, 16),
    (r"vit_small_resnet", 768, 8, 8),
    (r"", 64, 6, 2),
    (r"", 64, 8, 2),
    (r"", 96, 9, 3),
    (r"", 192, 12, 3),
    (r"", 256, 10, 4),
    (r"", 256, 14, 4),
    (r"", 256, 16, 4),
    (r"", 320, 14, 5),
    (r"", 384, 12, 6),
    (r"", 384, 36, 6),
    (r"", 512, 12, 8),
    (r"", 512, 20, 8),
    (r"", 640, 12, 10),
    (r"", 768, 12, 12),
    (r"", 832, 21, 13),
    (r"", 896, 12, 14),
    (r"", 896, 18, 14),
    (r"", 1024, 23, 16),
    (r"", 1024, 24, 16),
    (r"", 1152, 27, 16),
    (r"", 1280, 32, 16),
    (r"", 1408, 40, 16),
    (r"", 1536, 40, 24),
    (r"", 1664, 48, 16),
    (r"", 1792, 64, 16),
    (r"", 2048, 24, 16),
    (r"", 3072, 24, 24),
    (r"", 4096, 40, 32),
)
# For arguments of timm's models, the field of ViTConfig and the value.
ROTARY_KINDS = {"cat": "axial", "mixed": "mixed", "dinov3": "centered"}
AXES = {"ij": "yx", "xy": "xy"}


def settings_of(architecture: str) -> dict | None:
    """Return the fields of ViTConfig that the name of a model implies.

    Args:
        architecture: Name of the model in timm, such as
            "vit_base_patch16_clip_224"; what follows a point is left out.

    Returns:
        The fields, or None if timm has no such model.

    Example:
        >>> settings_of("vit_base_patch16_dinov3.lvd1689m")["rotary_positions"]
        'centered'
        >>> settings_of("my_own_vit") is None
        True
    """
    name = architecture.split(".")[0]
    words = name.split("_")
    if not all(word in WORDS or NUMBERS.match(word) for word in words):
        return None
    settings = dict(USUAL)
    for pattern, fields in ARCHITECTURES:
        if re.match(pattern, name):
            settings |= fields
    return settings


def heads_of(
    architecture: str, width: int, depth: int | None = None
) -> int | None:
    """Return the number of heads of an architecture of this size, or None.

    Args:
        architecture: Name of the model in timm.
        width: Size of a token.
        depth: Number of blocks; None for any, as in a model of which an
            argument changes the depth.
    """
    for pattern, *sizes, heads in HEADS_BY_SIZE:
        fits = sizes == [width, sizes[1] if depth is None else depth]
        if fits and re.match(pattern, architecture):
            return heads
    return None


def is_published_size(width: int, depth: int) -> bool:
    """Return whether timm has a model of this size.

    Args:
        width: Size of a token.
        depth: Number of blocks.
    """
    return any(sizes == [width, depth] for _, *sizes, _ in HEADS_BY_SIZE)


def settings_in(arguments: dict) -> dict:
    """Return the fields of ViTConfig in the arguments of a model of timm.

    Args:
        arguments: `model_args` of config.json. Those that names and shapes
            show as well are left out.

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
    if "rope_rotate_half" in arguments:
        found["rope_rotate_half"] = bool(arguments["rope_rotate_half"])
    if arguments.get("use_post_norm") is not None:
        after = arguments["use_post_norm"]
        found["norm_placement"] = "after" if after else "before"
    if isinstance(arguments.get("norm_layer"), str):
        # The name of a class, whose default replaces that of the architecture.
        found["layer_norm_epsilon"] = USUAL["layer_norm_epsilon"]
    if arguments.get("attn_only_layer_scale"):
        found["layer_scale_branches"] = "attention"
    if "pool_include_prefix" in arguments:
        found["pools_prefix_tokens"] = bool(arguments["pool_include_prefix"])
    for key in ("final_norm", "use_post_transformer_norm"):
        if arguments.get(key) is False:
            found["use_final_norm"] = False
    if arguments.get("rope_grid_indexing") in AXES:
        found["rotary_axes"] = AXES[arguments["rope_grid_indexing"]]
    if "ref_feat_shape" in arguments:
        size = arguments["ref_feat_shape"]
        size = [size, size] if isinstance(size, int) else size
        found["rotary_reference_size"] = size and tuple(size)
    for key, field in (
        ("rope_temperature", "rotary_temperature"),
        ("rope_grid_offset", "rotary_offset"),
        ("attn_pool_num_heads", "pooling_heads"),
        ("depth", "depth"),
    ):
        if arguments.get(key) is not None:
            found[field] = arguments[key]
    return found
