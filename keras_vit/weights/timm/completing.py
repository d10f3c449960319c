"""The configuration of a model in a file of timm and its config.json."""

import dataclasses
import re
from collections.abc import Collection, Iterator

from keras_vit.models.config import ViTConfig
from keras_vit.weights.containers.descriptions import image_tower_of
from keras_vit.weights.huggingface.model_types import IN_TIMM_NAMES
from keras_vit.weights.huggingface.tower_settings import read_settings
from keras_vit.weights.huggingface.visible_parts import check_expected
from keras_vit.weights.timm.architectures import (
    heads_of,
    is_published_size,
    settings_in,
    settings_of,
)
from keras_vit.weights.timm.visible_parts import check_parts


def describe_trunk(json: dict) -> dict:
    """Return the part of open_clip_config.json that describes timm's model.

    Args:
        json: The JSON beside a file; another one than OpenCLIP's is returned.
    """
    tower = image_tower_of(json)
    if "timm_model_name" not in tower:
        return json
    keys = {
        "architecture": "timm_model_name",
        "global_pool": "timm_pool",
        "img_size": "image_size",
    }
    found = {ours: tower[key] for ours, key in keys.items() if tower.get(key)}
    if tower.get("timm_proj") == "linear":
        found["num_classes"] = json["model_cfg"].get("embed_dim")
    return found


def read_hints(json: dict) -> dict:
    """Return the fields of ViTConfig in the JSON beside a file, see Layout.

    Args:
        json: The content of config.json; {} without one.

    Raises:
        ValueError: If no VisionTransformer computes the model.
    """
    arguments, published = (
        value if isinstance(value, dict) else {}
        for value in map(json.get, ("model_args", "pretrained_cfg"))
    )
    hints = settings_in(arguments)
    architecture = json.get("architecture")
    if architecture is not None and not isinstance(architecture, str):
        raise ValueError(
            "its configuration must name an `architecture`, such as "
            f"'vit_base_patch16_224', and has architecture={architecture!r}"
        )
    settings = settings_of(str(architecture))
    if json.get("model_type") in IN_TIMM_NAMES:
        return {**read_settings(json), **hints, "is_of_transformers": True}
    if settings is None:
        return hints
    tag = str(published.get("tag", ""))
    names = {"architecture": architecture, "tag": tag, "is_published": True}
    pooling = {key: json[key] for key in ("global_pool",) if key in json}
    names["arguments"] = {**pooling, **arguments}
    if "embed_dim" in arguments:
        # The heads are those of the architecture, not of this width.
        names["is_published"] = False
    if {**settings, **hints}["rotary_positions"] in USUAL_AXES:
        _check_rotation(hints, settings)
    rows = (arguments, json, published)
    stated = [row["num_classes"] for row in rows if "num_classes" in row]
    # This class of transformers builds the model without its head.
    if stated and json.get("architectures") != ["TimmWrapperModel"]:
        names["stated_classes"] = stated[0]
    return {**names, **settings, **hints}


def _check_rotation(hints, settings):
    """Raise a ValueError unless rotary positions are as in released models."""
    default = settings["rotary_positions"]
    kind = hints.get("rotary_positions", default)
    is_default = kind == default
    axes = hints.get("rotary_axes", USUAL_AXES[kind] if is_default else "yx")
    halves = hints.get("rope_rotate_half", is_default and kind == "centered")
    if axes != USUAL_AXES[kind] or halves != (kind == "centered"):
        raise ValueError(
            f"its configuration has rotary positions of the kind {kind!r} that "
            "turn or count otherwise than all released ones "
            "(rope_rotate_half, rope_grid_indexing)"
        )


def guess_heads(config: ViTConfig, hints: dict) -> int | None:
    """Return the number of heads of the architecture, or None.

    Args:
        config: The configuration, except for the heads.
        hints: What `read_hints` returned.
    """
    if not hints.get("is_published"):
        return None
    # An argument that changes the depth leaves the heads as they are.
    depth = None if "depth" in hints else config.depth
    return heads_of(hints["architecture"], config.width, depth)


def find_undetermined(
    config: ViTConfig, names: Collection[str]
) -> Iterator[tuple]:
    """Yield parts of a model, each with fields that the file does not show.

    Args:
        config: The configuration that the file shows.
        names: The names in the file.
    """
    if config.use_embedding_norm:
        fields = ("layer_norm_epsilon", "rotary_positions")
        # The activation of a gated MLP is known.
        fields += () if config.use_gated_mlp else ("activation",)
        yield "a norm before the first block", fields
    elif any(map(re.compile(EVA_NAMES).search, names)):
        fields = ("layer_norm_epsilon", "norm_placement", "rotary_positions")
        yield "the names of EVA and its descendants", fields
    elif config.use_attention_inner_norm:
        yield "a norm inside the attention", ("layer_norm_epsilon",)
    elif config.norm == "rms":
        yield "RMS norms", ("layer_norm_epsilon",)
    elif config.relative_positions != "none":
        yield "relative positions", ("norm_placement",)
    elif config.position_embedding == "none":
        yield "no position table", ("rotary_positions",)
    elif _is_like_rpn(config) and config.width == 768:
        yield "the names and sizes of two models", ("norm_placement",)
    if config.layer_scale_branches != "both":
        yield "LayerScale in one branch alone", ("layer_scale_branches",)
    if config.rotary_positions == "axial":
        yield "rotary positions", ROTARY_FIELDS
    if config.pooling == "map" and config.num_prefix_tokens:
        yield "attention pooling and a class token or registers", ("pooling",)
    if not config.use_patch_bias and not config.use_embedding_norm:
        yield "no patch_embed.proj.bias", ("use_patch_bias",)
    if not config.use_final_norm:
        yield "no norm.weight", ("use_final_norm",)


def _is_like_rpn(config):
    """Return whether the norms may follow the branches of the blocks."""
    return (
        config.use_pooling_norm
        and not config.use_class_token
        and config.layer_scale_init is None
    )


def complete(
    config: ViTConfig, hints: dict, names: Collection[str]
) -> tuple[ViTConfig, tuple[str, ...]]:
    """Return the configuration of timm's model, with notes on assumptions.

    Args:
        config: The configuration that the file shows.
        hints: What `read_hints` returned.
        names: The names in the file.

    Raises:
        ValueError: If no VisionTransformer computes it.
    """
    check_expected(config, hints.get("expected", {}))
    fields = dict.fromkeys(field.name for field in dataclasses.fields(config))
    stated = {key: value for key, value in hints.items() if key in fields}
    changes = {
        name: stated[name]
        for name in ("norm_placement", "pooling_heads", *ALL_ROTARY_FIELDS)
        if name in stated
    }
    if config.use_gated_mlp and "is_of_transformers" not in hints:
        # All gated MLPs of timm have SiLU, unless an argument changes it.
        is_stated = "act_layer" in hints.get("arguments", {})
        changes["activation"] = hints["activation"] if is_stated else "silu"
    if config.use_distillation_token and config.pooling == "token":
        changes["pooling"] = "distilled"
        if config.use_pooling_norm:
            raise ValueError(
                "it has fc_norm, which timm's class with a distillation token "
                "does not compute"
            )
    is_eva = hints.get("map_reads_prefix_tokens", False)
    if is_eva and config.pooling == "map" and config.use_gated_mlp:
        raise ValueError(
            "its attention pooling has an MLP with GELU, and its blocks have "
            "gates; a model of this package has one activation"
        )
    if config.num_prefix_tokens:
        changes |= _settle_pooling(config, hints)
    config = dataclasses.replace(config, **changes)
    is_centered = config.rotary_positions == "centered"
    if hints.get("rope_rotate_half", is_centered) != is_centered or (
        is_centered and config.rotary_offset
    ):
        raise ValueError(
            "its configuration has rotary positions of the kind "
            f"{config.rotary_positions!r} that turn or count otherwise than "
            "all released ones (rope_rotate_half, rope_grid_offset)."
        )
    return _assume(config, hints)


def _settle_pooling(config, hints):
    """Return the pooling of a model with tokens other than patches."""
    pools_all = hints.get("pools_prefix_tokens", False)
    reads_all = pools_all or hints.get("map_reads_prefix_tokens", False)
    is_known = "architecture" in hints
    if is_known and config.pooling == "map" and not reads_all:
        return {"pooling": "map_patches"}
    if pools_all and config.pooling in ("avg", "max"):
        raise ValueError(
            "its configuration has pool_include_prefix=True, but the "
            "poolings of this package leave out the tokens before the patches"
        )
    return {}


def _assume(config, hints):
    """Return the configuration, with notes on the values that are assumed."""
    if "is_published" in hints:
        architecture = hints["architecture"].split(".")[0]
        check_parts(config, architecture, hints["arguments"])
        return config, _note_quick(hints)
    if config.use_class_token:
        return config, ()
    image_sizes = (None, config.image_size)
    sizes = (config.width, config.depth, config.patch_size)
    names = [TANH_SIZES.get((*sizes, size)) for size in image_sizes]
    name = names[0] or names[1]
    usual = {}
    if "activation" not in hints and name:
        usual["activation"] = ("tanh", "exact", f"as in timm's {name}")
    elif not is_published_size(*sizes[:2]):
        if "activation" not in hints:
            usual["activation"] = ("exact", "tanh", "as in most of timm")
        if _is_like_rpn(config) and "norm_placement" not in hints:
            reason = "as in most of timm"
            usual["norm_placement"] = ("before", "after", reason)
    notes = tuple(
        "No configuration beside the file states all that its model computes: "
        f"`{field}='{value}'` is assumed, {reason}. Pass `{field}='{value}'` "
        f"to confirm it, or `{field}='{other}'`."
        for field, (value, other, reason) in usual.items()
    )
    values = {field: row[0] for field, row in usual.items()}
    return dataclasses.replace(config, **values), notes


def _note_quick(hints):
    tag = hints.get("tag", "")
    if not re.match(QUICK_TAGS, tag) or hints["activation"] == "quick":
        return ()
    return (
        f"The model {hints['architecture']}.{tag} was trained with the quick "
        "GELU, and timm computes the exact one under this name, as does this "
        "model. Pass `activation='quick'` for the outputs of the original.",
    )


# Names of arrays that only timm's classes Eva and Beit have.
EVA_NAMES = r"blocks\.0\.(gamma_1|attn\.(q_bias|q_proj\.)|mlp\.fc1_g\.)"
ROTARY_FIELDS = ("rotary_temperature", "rotary_axes")
ALL_ROTARY_FIELDS = (
    "rotary_positions",
    *ROTARY_FIELDS,
    "rotary_reference_size",
    "rotary_offset",
)
USUAL_AXES = {"centered": "yx", "mixed": "xy"}
# Tags of weights that were trained with the quick GELU.
QUICK_TAGS = r"openai|dfn|metaclip_(?!altogether)"
# Models with the tanh GELU by their sizes: width, depth, patch and image (None
# for any). They have no class token. No other released model has these sizes.
TANH_SIZES = {
    (768, 12, 32, None): "vit_base_patch32_siglip",
    (1024, 24, 16, (512, 512)): "vit_large_patch16_siglip_512",
    (1152, 27, 16, None): "vit_so400m_patch16_siglip",
    (1536, 40, 16, None): "vit_giantopt_patch16_siglip",
}
