"""timm: huggingface/pytorch-image-models."""

import dataclasses
import re

from keras_vit.models.config import ViTConfig
from keras_vit.weights.huggingface_models import describe_tower, read_settings
from keras_vit.weights.layer_shapes import BLOCK, RELATIVE, ROTARY, UNIT
from keras_vit.weights.layouts import Layout, Spelling, Variant
from keras_vit.weights.styles import FLAT_PATCHES, LATER_TORCH, SAME, TORCH
from keras_vit.weights.timm_architectures import (
    heads_of,
    is_published_size,
    settings_in,
    settings_of,
)
from keras_vit.weights.timm_json import (
    epsilon_of,
    explain_refusal,
    has_split_gate,
    has_split_projections,
    is_eva,
    make_json,
)
from keras_vit.weights.writers import (
    folder_writer,
    npz_writer,
    write_safetensors_file,
)

# The biases of separate queries and values.
SPLIT_BIAS = {
    "query_bias": (".q_proj.bias", SAME),
    "value_bias": (".v_proj.bias", SAME),
}
STAGES = "patch_embed.backbone.stages.{s}.blocks.{u}."


def make_jsons(config: ViTConfig) -> dict[str, dict]:
    """Return the JSON file beside the weights, by name.

    Args:
        config: Configuration of the model.

    Raises:
        ValueError: If the model is a hybrid.
    """
    return {"config.json": make_json(config)}


def _read_hints(json):
    arguments, published = (
        value if isinstance(value, dict) else {}
        for value in map(json.get, ("model_args", "pretrained_cfg"))
    )
    hints = settings_in(arguments)
    architecture = json.get("architecture")
    settings = settings_of(str(architecture))
    if json.get("model_type", "timm_wrapper") != "timm_wrapper":
        return {**read_settings(json), **hints}
    if settings is None:
        return hints
    tag = str(published.get("tag", ""))
    names = {"architecture": architecture, "tag": tag, "is_published": True}
    return {**names, **settings, **hints}


def _guess_heads(config, hints):
    if "architecture" not in hints:
        return None
    return heads_of(hints["architecture"], config.width, config.depth)


def _untold(config, names):
    """Yield the parts of later models that depend on more than the file."""
    if config.use_embedding_norm:
        fields = ("layer_norm_epsilon", "activation", "rotary_positions")
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
    if config.rotary_positions == "axial":
        yield "rotary positions", ROTARY_FIELDS
    if config.pooling == "map" and config.num_prefix_tokens:
        yield "attention pooling and a class token or registers", ("pooling",)
    if not config.use_patch_bias and not config.use_embedding_norm:
        yield "no patch_embed.proj.bias", ("use_patch_bias",)
    if not config.use_final_norm:
        yield "no norm.weight", ("use_final_norm",)


def _computes(config):
    """Return what timm's function for a model fixes."""
    return {
        "layer_norm_epsilon": epsilon_of(config),
        "activation": "silu" if config.use_gated_mlp else "exact",
    }


def _is_like_rpn(config):
    """Return whether the norms may follow the branches of the blocks."""
    return (
        config.use_pooling_norm
        and not config.use_class_token
        and config.layer_scale_init is None
    )


def _complete(config, hints, names):
    fields = dict.fromkeys(field.name for field in dataclasses.fields(config))
    told = {key: value for key, value in hints.items() if key in fields}
    changes = {
        name: told[name]
        for name in ("norm_placement", "pooling_heads", *ALL_ROTARY_FIELDS)
        if name in told
    }
    if config.use_gated_mlp:
        changes["activation"] = "silu"  # Of all gates in timm.
    if config.use_distillation_token and config.pooling == "token":
        changes["pooling"] = "distilled"
    if config.num_prefix_tokens:
        changes |= _settle_pooling(config, hints)
    config = dataclasses.replace(config, **changes)
    return _assume(config, hints)


def _settle_pooling(config, hints):
    """Return which tokens a model pools that has others beside patches."""
    pools_all = hints.get("pools_prefix_tokens", False)
    is_known = "architecture" in hints
    if is_known and config.pooling == "map" and not pools_all:
        return {"pooling": "map_patches"}
    if pools_all and config.pooling in ("avg", "max"):
        raise ValueError(
            "its configuration has pool_include_prefix=True, but the "
            "poolings of this package leave out the tokens before the patches"
        )
    return {}


def _assume(config, hints):
    """Return the configuration, with notes on what is not known but usual."""
    if "is_published" in hints:
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


LAYOUT = Layout(
    order=2,
    title="timm (huggingface/pytorch-image-models)",
    style={**TORCH, **LATER_TORCH},
    names={
        "patch_encoder": "patch_embed.proj",
        "patch_norm": "patch_embed.norm",
        "registers": "reg_token",
        "distillation_token": "dist_token",
        "class_token": "cls_token",
        "position_embedding": "pos_embed",
        "embedding_norm": "norm_pre",
        RELATIVE: "blocks.{i}.attn.relative_position_bias_table",
        RELATIVE + "/hidden": "blocks.{i}.attn.rel_pos.mlp.fc1",
        RELATIVE + "/out": "blocks.{i}.attn.rel_pos.mlp.fc2",
        "relative_positions/hidden": "shared_rel_pos.mlp.fc1",
        "relative_positions/out": "shared_rel_pos.mlp.fc2",
        ROTARY: "rope.freqs.{i}",
        BLOCK + "attention_norm": "blocks.{i}.norm1",
        BLOCK + "attention": "blocks.{i}.attn",
        BLOCK + "attention/query_norm": "blocks.{i}.attn.q_norm",
        BLOCK + "attention/key_norm": "blocks.{i}.attn.k_norm",
        BLOCK + "attention/inner_norm": "blocks.{i}.attn.norm",
        BLOCK + "attention_scale": "blocks.{i}.ls1",
        BLOCK + "mlp/inner_norm": "blocks.{i}.mlp.norm",
        BLOCK + "mlp_scale": "blocks.{i}.ls2",
        BLOCK + "attention/qkv": "blocks.{i}.attn.qkv",
        BLOCK + "attention/out": "blocks.{i}.attn.proj",
        BLOCK + "mlp_norm": "blocks.{i}.norm2",
        BLOCK + "mlp/hidden": "blocks.{i}.mlp.fc1",
        BLOCK + "mlp/out": "blocks.{i}.mlp.fc2",
        "encoder_norm": "norm",
        "pooling_norm": "fc_norm",
        "pooling": "attn_pool.latent",
        "pooling/query": "attn_pool.q",
        "pooling/key_value": "attn_pool.kv",
        "pooling/out": "attn_pool.proj",
        "pooling/norm": "attn_pool.norm",
        "pooling/mlp/hidden": "attn_pool.mlp.fc1",
        "pooling/mlp/out": "attn_pool.mlp.fc2",
        "predictions": "head",
        "predictions/class_head": "head",
        "predictions/teacher_head": "head_dist",
        "stem/root_conv": "patch_embed.backbone.stem.conv",
        "stem/root_norm": "patch_embed.backbone.stem.norm",
        UNIT + "conv1": STAGES + "conv1",
        UNIT + "conv2": STAGES + "conv2",
        UNIT + "conv3": STAGES + "conv3",
        UNIT + "norm1": STAGES + "norm1",
        UNIT + "norm2": STAGES + "norm2",
        UNIT + "norm3": STAGES + "norm3",
        UNIT + "shortcut_conv": STAGES + "downsample.conv",
        UNIT + "shortcut_norm": STAGES + "downsample.norm",
    },
    recognise=("patch_embed.proj.weight", "embeds.proj.weight"),
    variants=(
        Variant(
            r"blocks\.0\.attn\.q_proj\.",
            names={
                BLOCK + "attention/qkv": (
                    "blocks.{i}.attn.q_proj",
                    "blocks.{i}.attn.k_proj",
                    "blocks.{i}.attn.v_proj",
                ),
            },
            style={"query_value_bias": SPLIT_BIAS},
            used_by=has_split_projections,
        ),
        Variant(
            r"blocks\.0\.gamma_1",
            names={
                BLOCK + "attention_scale": "blocks.{i}.gamma_1",
                BLOCK + "mlp_scale": "blocks.{i}.gamma_2",
            },
            style={"scale": {"scale": ("", SAME)}},
            used_by=lambda config: (
                is_eva(config) or config.relative_positions == "table"
            ),
        ),
        Variant(
            r"blocks\.0\.mlp\.fc1_g\.",
            names={
                BLOCK + "mlp/hidden": (
                    "blocks.{i}.mlp.fc1_g",
                    "blocks.{i}.mlp.fc1_x",
                ),
            },
            used_by=has_split_gate,
        ),
        Variant(
            r"embeds\.proj\.",
            names={"patch_encoder": "embeds.proj"},
            style={
                "conv": {
                    "kernel": (".weight", FLAT_PATCHES),
                    "bias": (".bias", SAME),
                },
            },
        ),
    ),
    has_architectures=True,
    has_later_parts=True,
    position_resize="bicubic_antialias",
    stem_epsilons="timm",
    wrappers=("module.", "model.", "_orig_mod.", "state_dict.", "timm_model."),
    # A stem without stages is not nested.
    aliases=(
        (
            r"^patch_embed\.backbone\.(conv|norm)\.",
            r"patch_embed.backbone.stem.\1.",
        ),
        # The DINOv2 code and TIPSv2.
        (r"^(register_tokens|storage_tokens)$", "reg_token"),
        (r"\.mlp\.(c_fc|w12)\.", ".mlp.fc1."),
        (r"\.mlp\.(c_proj|w3)\.", ".mlp.fc2."),
        (r"^embeds\.(cls_token|reg_token|pos_embed)$", r"\1"),
        (r"^embeds\.norm\.", "patch_embed.norm."),
    ),
    spellings={"root": Spelling(((r"\.backbone\.stem\.", ".backbone."),))},
    spelling_of=lambda config: "root" if config.stem_stages == () else "",
    ignore=r"(mask_token|optimizer|epoch)$",
    optional_bias=("heads_in",),
    slots=((1, 0), (0,)),
    stacks={"rope.freqs": 1},
    describe=describe_tower,
    read_hints=_read_hints,
    guess_heads=_guess_heads,
    complete=_complete,
    untold=_untold,
    writers={
        ".safetensors": write_safetensors_file,
        ".npz": npz_writer(),
        "": folder_writer(make_jsons),
    },
    writes_later_parts=True,
    computes=_computes,
    refuse=explain_refusal,
    remedies={"activation": "Pass `act_layer` there."},
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
