"""timm: huggingface/pytorch-image-models."""

import dataclasses
import math
import re
from collections.abc import Callable

import ml_dtypes
import numpy as np

from keras_vit.layers.rotary import rotary_periods
from keras_vit.models.config import ViTConfig
from keras_vit.preprocessing.description import NEAREST_FILTERS
from keras_vit.weights.families.family import (
    FLAT_CHANNELS,
    FLAT_CONV,
    ONE_AXIS_LESS,
    SAME,
    TORCH,
    TORCH_WRAPPERS,
    Dialect,
    Family,
    Variant,
    choose,
)
from keras_vit.weights.families.huggingface_types import (
    check_visible,
    describe_tower,
    has_timm_names,
    read_settings,
)
from keras_vit.weights.families.inference import BLOCK
from keras_vit.weights.families.open_clip import image_tower_of
from keras_vit.weights.families.timm_tables import (
    check_parts,
    fields_in,
    fields_of,
    heads_of,
    is_published_size,
)

UNIT = "stem/stage_#_unit_#/"
STAGES = "patch_embed.backbone.stages.{s}.blocks.{u}."
# A stem without stages is not nested.
FLAT_ROOT = Dialect(((r"\.backbone\.stem\.", ".backbone."),))
WRAPPED = "|".join(map(re.escape, TORCH_WRAPPERS))
# Names in the files of DINOv3, EVA and RADIO that those of timm do not have.
KEY_MASK = re.compile(r"(.*\.attn\.qkv\.)bias_mask$")
RADIO_TOKENS = "patch_generator.cls_token.token"
QUERY_OR_VALUE_BIAS = re.compile(r"(.*\.attn\.)([qv])_bias$")
# Names of arrays that only timm's classes Eva and Beit have.
EVA_NAMES = re.compile(
    r"blocks\.0\.(gamma_1|attn\.(q_bias|q_proj\.)|mlp\.fc1_g\.)"
)
ROTARY_FIELDS = ("rotary_temperature", "rotary_axes")
ALL_ROTARY_FIELDS = (
    "rotary_positions",
    *ROTARY_FIELDS,
    "rotary_reference_size",
    "rotary_offset",
)
USUAL_AXES = {"centered": "yx", "mixed": "xy"}
ODD_ROTATION = (
    "its configuration has rotary positions of the kind {!r} that turn or "
    "count otherwise than all released ones (rope_rotate_half, "
    "rope_grid_indexing, rope_grid_offset)"
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
ACT_LAYERS = {
    "exact": "gelu",
    "tanh": "gelu_tanh",
    "quick": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
    "elu": "elu",
}
ROPE_TYPES = {"axial": "cat", "mixed": "mixed", "centered": "dinov3"}
POOLS = {
    "token": "token",
    "avg": "avg",
    "max": "max",
    "none": "",
    "distilled": "token",
    "map": "map",
    "map_patches": "map",
}


def is_eva(config: ViTConfig) -> bool:
    """Return whether timm's class of a model is Eva."""
    has_bias = config.qkv_bias == "query_value"
    is_table = config.relative_positions == "table"
    return config.rotary_positions != "none" or (has_bias and not is_table)


def is_sapiens(config: ViTConfig) -> bool:
    """Return whether the class is Eva with the norms of Sapiens 2."""
    return is_eva(config) and config.norm == "rms"


def has_split_projections(config: ViTConfig) -> bool:
    """Return whether queries, keys and values have arrays of their own."""
    return is_eva(config) and (
        is_sapiens(config)
        or (config.use_gated_mlp and config.use_mlp_inner_norm)
    )


def has_split_gate(config: ViTConfig) -> bool:
    """Return whether the gate of the MLP has an array of its own."""
    if is_sapiens(config):
        return config.use_gated_mlp and config.use_mlp_inner_norm
    return config.use_gated_mlp and (
        config.norm == "rms"
        or (config.use_mlp_inner_norm and is_eva(config))
        or config.rotary_positions.startswith("centered")
    )


class Timm(Family):
    """The files of timm, and of the code whose names it reads.

    That is the code of DINO, DINOv2, DINOv3, MAE, EVA, RADIO, TIPSv2 and
    Sapiens 2, and OpenCLIP around a model of timm.
    """

    title = "timm (huggingface/pytorch-image-models)"
    style = TORCH
    layers = {
        "patch_encoder": "patch_embed.proj",
        "patch_norm": "patch_embed.norm",
        "registers": "reg_token",
        "distillation_token": "dist_token",
        "class_token": "cls_token",
        "position_embedding": "pos_embed",
        "embedding_norm": "norm_pre",
        "relative_positions_#": "blocks.{i}.attn.relative_position_bias_table",
        "relative_positions_#/hidden": "blocks.{i}.attn.rel_pos.mlp.fc1",
        "relative_positions_#/out": "blocks.{i}.attn.rel_pos.mlp.fc2",
        "relative_positions/hidden": "shared_rel_pos.mlp.fc1",
        "relative_positions/out": "shared_rel_pos.mlp.fc2",
        "rotary_positions_#": "rope.freqs.{i}",
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
        **{
            UNIT + f"{kind}{n}": STAGES + f"{kind}{n}"
            for kind in ("conv", "norm")
            for n in (1, 2, 3)
        },
        UNIT + "shortcut_conv": STAGES + "downsample.conv",
        UNIT + "shortcut_norm": STAGES + "downsample.norm",
    }
    recognise = (
        "patch_embed.proj.weight",
        "embeds.proj.weight",
        "patch_embed.projection.weight",
        "patch_generator.embedder.weight",
    )
    variants = (
        Variant(
            r"blocks\.0\.attn\.q_proj\.",
            {
                BLOCK + "attention/qkv": (
                    "blocks.{i}.attn.q_proj",
                    "blocks.{i}.attn.k_proj",
                    "blocks.{i}.attn.v_proj",
                ),
            },
            {
                "query_bias": (".q_proj.bias", SAME),
                "value_bias": (".v_proj.bias", SAME),
            },
            used_by=has_split_projections,
        ),
        Variant(
            r"blocks\.0\.gamma_1",
            {
                BLOCK + "attention_scale": "blocks.{i}.gamma_1",
                BLOCK + "mlp_scale": "blocks.{i}.gamma_2",
            },
            {"scale": ("", SAME)},
            used_by=lambda config: (
                is_eva(config) or config.relative_positions == "table"
            ),
        ),
        Variant(
            r"blocks\.0\.mlp\.fc1_g\.",
            {
                BLOCK + "mlp/hidden": (
                    "blocks.{i}.mlp.fc1_g",
                    "blocks.{i}.mlp.fc1_x",
                ),
            },
            used_by=has_split_gate,
        ),
        Variant(r"embeds\.proj\.", {"patch_encoder": "embeds.proj"}, FLAT_CONV),
        # RADIO: flat patches, and tokens without the axis of the batch.
        Variant(
            r"patch_generator\.embedder\.",
            {"patch_encoder": "patch_generator.embedder"},
            {
                "patch_encoder/kernel": (".weight", FLAT_CHANNELS),
                "token": ("", ONE_AXIS_LESS),
            },
        ),
    )
    wrappers = (
        *TORCH_WRAPPERS,
        "timm_model.",
        "trunk.",
        "visual.",
        "radio_model.",
        "vision_encoder.",
    )
    aliases = (
        (r"^trunk_head\.proj\.", "head."),
        # A stem without stages is not nested.
        (
            r"^patch_embed\.backbone\.(conv|norm)\.",
            r"patch_embed.backbone.stem.\1.",
        ),
        # Sapiens 2.
        (r"^patch_embed\.projection\.", "patch_embed.proj."),
        (r"\.attn\.w([qkv])\.", r".attn.\1_proj."),
        (r"\.attn\.gamma\.weight$", ".gamma_1"),
        (r"\.ffn\.", ".mlp."),
        (r"\.ln([12])\.", r".norm\1."),
        (r"^ln1\.", "norm."),
        # RADIO.
        (r"^patch_generator\.pos_embed$", "pos_embed"),
        (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
        # The DINOv2 code, whose blocks may be in groups, and TIPSv2.
        (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),
        (r"^(register_tokens|storage_tokens)$", "reg_token"),
        (r"\.mlp\.(c_fc|w12|weights_in)\.", ".mlp.fc1."),
        (r"\.mlp\.(c_proj|w3|weights_out)\.", ".mlp.fc2."),
        # The code of DINOv3 and EVA.
        (r"\.mlp\.w1\.", ".mlp.fc1_g."),
        (r"\.mlp\.w2\.", ".mlp.fc1_x."),
        (r"\.mlp\.ffn_ln\.", ".mlp.norm."),
        (r"\.attn\.inner_attn_ln\.", ".attn.norm."),
        (r"^embeds\.(cls_token|reg_token|pos_embed)$", r"\1"),
        (r"^embeds\.norm\.", "patch_embed.norm."),
    )
    # The frequencies are constants, which the model computes by itself. In
    # OpenCLIP and TIPSv2, the text tower and its scale stand beside the images.
    # Files of training have the heads of DINO and EVA, and the decoder of MAE.
    ignore = (
        r"text\.|text_encoder\.|(logit_scale|logit_bias|temperature)$|"
        rf"({WRAPPED})*((dino|ibot)_head|head\.mlp\.(\d|weight|bias)|"
        r"head\.last_layer)|"
        r"lm_head\.|decoder_(pos_embed$|(embed|blocks|norm|pred)\.)|"
        r"(.*\.)?relative_position_index$|"
        r"(mask_token|optimizer|epoch|local_cls_norm\..*|"
        r"(.*\.)?rope\.freqs_(cos|sin)|rope_embed\.periods)$|"
        r"(decode_head|scale_head|patch_generator\.video_embedder)\.|"
        r"radio_model\.(input_conditioner\.|summary_idxs$)"
    )
    stacks = {"rope.freqs": 1}
    optional_bias = ("attention/qkv",)
    normalization = None
    position_resize = "bicubic_antialias"
    other_resizes = (
        (("decoder_pos_embed",), None, "bicubic"),  # MAE.
        (
            ("mask_token", "pos_embed", "blocks.0.ls1.gamma"),
            "reg_token",
            "bicubic_offset",  # DINOv2.
        ),
    )
    stem_epsilons = "timm"
    slots = ((1, 0), (0,))
    has_later_parts = has_architectures = True
    endings = {".safetensors": "", ".npz": "", "": ""}

    # ---------------------------------------------------------------- reading

    def prepare(self, shapes, json):
        """Name the arrays of DINOv3, EVA-02 and RADIO as in timm.

        DINOv3 stores biases of queries, keys and values in one array, and its
        code ignores those of the keys. EVA-02 stores the biases of queries and
        values beside their projections, not in them. RADIO stores class tokens
        and registers in one array.
        """
        prepared = {name: (name, None) for name in shapes}
        for name in shapes:
            if name == RADIO_TOKENS:
                del prepared[name]
                prepared["cls_token"] = (name, (slice(0, 1),))
                prepared["reg_token"] = (name, (slice(1, None),))
            masked = KEY_MASK.match(name)
            if masked and f"{masked[1]}bias" in shapes:
                stored = f"{masked[1]}bias"
                del prepared[name], prepared[stored]
                width = shapes[stored][0] // 3
                prefix = masked[1].removesuffix("qkv.")
                prepared[f"{prefix}q_bias"] = (stored, (slice(0, width),))
                prepared[f"{prefix}v_bias"] = (
                    stored,
                    (slice(2 * width, None),),
                )
            split = QUERY_OR_VALUE_BIAS.match(name)
            if split and f"{split[1]}q_proj.weight" in shapes:
                del prepared[name]
                prepared[f"{split[1]}{split[2]}_proj.bias"] = (name, None)
        return prepared

    def read_hints(self, json):
        """Return the fields in config.json, and what its architecture has.

        The config.json may be of transformers or OpenCLIP.
        """
        if "model_type" in json and has_timm_names(json):
            json = describe_tower(json)
            return json, {**read_settings(json), "is_of_transformers": True}
        tower = image_tower_of(json) if "model_cfg" in json else {}
        if "timm_model_name" in tower:
            keys = {
                "architecture": "timm_model_name",
                "global_pool": "timm_pool",
                "img_size": "image_size",
            }
            found = {key: tower[k] for key, k in keys.items() if tower.get(k)}
            if tower.get("timm_proj") == "linear":
                found["num_classes"] = json["model_cfg"].get("embed_dim")
            json = found
        arguments, published = (
            value if isinstance(value, dict) else {}
            for value in map(json.get, ("model_args", "pretrained_cfg"))
        )
        hints = fields_in(arguments)
        architecture = json.get("architecture")
        if architecture is not None and not isinstance(architecture, str):
            raise ValueError(
                "its configuration must name an `architecture`, such as "
                "'vit_base_patch16_224', and has architecture="
                f"{architecture!r}"
            )
        name, _, tag = str(architecture).partition(".")
        fields = fields_of(name)
        if fields is None:
            return json, hints
        default = fields["rotary_positions"]
        kind = hints.get("rotary_positions", default)
        if kind in USUAL_AXES:
            axes = USUAL_AXES[kind] if kind == default else "yx"
            halves = kind == default == "centered"
            if hints.get("rotary_axes", axes) != USUAL_AXES[kind] or (
                hints.get("rope_rotate_half", halves) != (kind == "centered")
            ):
                raise ValueError(ODD_ROTATION.format(kind))
        pooling = {key: json[key] for key in ("global_pool",) if key in json}
        rows = (arguments, json, published)
        classes = [row["num_classes"] for row in rows if "num_classes" in row]
        if json.get("architectures") == ["TimmWrapperModel"]:
            classes = []  # It builds the model without its head.
        return json, {
            "architecture": name,
            "tag": tag or str(published.get("tag", "")),
            # With another width, the heads are not those of the architecture.
            "is_published": "embed_dim" not in arguments,
            "arguments": {**pooling, **arguments},
            "stated_classes": classes[0] if classes else None,
            **fields,
            **hints,
        }

    def guess_heads(self, config, hints):
        if not hints.get("is_published"):
            return None
        # An argument that changes the depth leaves the heads as they are.
        depth = None if "depth" in hints else config.depth
        return heads_of(hints["architecture"], config.width, depth)

    def undetermined(self, config, names):
        if config.use_embedding_norm:
            fields = ("layer_norm_epsilon", "rotary_positions")
            # The activation of a gated MLP is known.
            fields += () if config.use_gated_mlp else ("activation",)
            yield "a norm before the first block", fields
        elif any(map(EVA_NAMES.search, names)):
            fields = (
                "layer_norm_epsilon",
                "norm_placement",
                "rotary_positions",
            )
            yield "the names of EVA and its descendants", fields
        elif config.use_attention_inner_norm:
            yield "a norm inside the attention", ("layer_norm_epsilon",)
        elif config.norm == "rms":
            yield "RMS norms", ("layer_norm_epsilon",)
        elif config.relative_positions != "none":
            yield "relative positions", ("norm_placement",)
        elif config.position_embedding == "none":
            yield "no position table", ("rotary_positions",)
        elif config.width == 768 and _is_like_rpn(config):
            yield "the names and sizes of two models", ("norm_placement",)
        if config.layer_scale_branches != "both":
            yield "LayerScale in one branch alone", ("layer_scale_branches",)
        if config.rotary_positions == "axial":
            yield "rotary positions", ROTARY_FIELDS
        if config.pooling == "map" and config.num_prefix_tokens:
            yield (
                "attention pooling and a class token or registers",
                ("pooling",),
            )
        if not config.use_patch_bias and not config.use_embedding_norm:
            yield "no patch_embed.proj.bias", ("use_patch_bias",)
        if not config.use_final_norm:
            yield "no norm.weight", ("use_final_norm",)

    def complete(self, config, hints, shapes):
        if "visible" in hints:
            check_visible(config, hints["visible"])
        arguments = hints.get("arguments", {})
        changes = {
            name: hints[name]
            for name in ("norm_placement", "pooling_heads", *ALL_ROTARY_FIELDS)
            if name in hints
        }
        if config.use_gated_mlp and "is_of_transformers" not in hints:
            # All gated MLPs of timm have SiLU, unless an argument changes it.
            is_stated = "act_layer" in arguments
            changes["activation"] = hints["activation"] if is_stated else "silu"
        if config.use_distillation_token and config.pooling == "token":
            changes["pooling"] = "distilled"
            if config.use_pooling_norm:
                raise ValueError(
                    "it has fc_norm, which timm's class with a distillation "
                    "token does not compute"
                )
        reads_all = hints.get("map_reads_prefix_tokens", False)
        if reads_all and config.pooling == "map" and config.use_gated_mlp:
            raise ValueError(
                "its attention pooling has GELU, and its blocks have gates; a "
                "model of this package has one activation"
            )
        pools_all = hints.get("pools_prefix_tokens", False)
        if config.num_prefix_tokens:
            is_map = "architecture" in hints and config.pooling == "map"
            if is_map and not (reads_all or pools_all):
                changes["pooling"] = "map_patches"
            elif pools_all and config.pooling in ("avg", "max"):
                raise ValueError(
                    "its configuration has pool_include_prefix=True, but the "
                    "poolings of this package leave out the tokens before the "
                    "patches"
                )
        config = dataclasses.replace(config, **changes)
        kind = config.rotary_positions
        is_centered = kind == "centered"
        if hints.get("rope_rotate_half", is_centered) != is_centered or (
            is_centered and config.rotary_offset
        ):
            raise ValueError(ODD_ROTATION.format(kind))
        if "is_published" in hints:
            architecture, tag = hints["architecture"], hints["tag"]
            check_parts(config, architecture, arguments)
            if re.match(QUICK_TAGS, tag) and hints["activation"] != "quick":
                shapes.notes.append(
                    f"The model {architecture}.{tag} was trained with "
                    "the quick GELU, and timm computes the exact one under "
                    "this name, as does this model. Pass `activation='quick'` "
                    "for the outputs of the original."
                )
        elif not config.use_class_token:
            config = _assume(config, hints, shapes)
        return config

    def settle(self, config, constants):
        """Return the configuration with the constants in a file.

        The code of DINOv3 computes with the periods in its files, which are
        rounded. RADIO states which class tokens its summary joins.
        """
        summary = constants.get("summary_idxs")
        if config.pooling == "prefix":
            if summary is None:
                raise ValueError("it lacks summary_idxs.")
            indices = tuple(int(index) for index in summary)
            config = dataclasses.replace(config, pooling_indices=indices)
        periods = constants.get("periods")
        kind = config.rotary_positions
        if periods is None:
            return config
        if kind == "centered":
            exact = rotary_periods(config.head_size, config.rotary_temperature)
            rounded = exact.astype(ml_dtypes.bfloat16).astype("float32")
            if periods.shape == exact.shape:
                if np.allclose(periods, exact, rtol=1e-6, atol=0):
                    return config
                if np.array_equal(periods, rounded):
                    return dataclasses.replace(
                        config, rotary_positions="centered_bfloat16"
                    )
        raise ValueError(
            "its rope_embed.periods are not those of a model with "
            f"rotary_positions={kind!r}, num_heads={config.num_heads} and "
            f"rotary_temperature={config.rotary_temperature}"
        )

    # ---------------------------------------------------------------- writing

    def keeps(self, config):
        # The class with a distillation token has biases and positions for all.
        names = ("use_prefix_positions", "qkv_bias")
        return () if config.use_distillation_token else names

    def class_entries(self, names):
        return {"label_names": list(names)}

    def write(self, config):
        """Write the `config.json` with which timm builds a model.

        timm builds a model by the name of an architecture, whose function
        fixes what no argument can say: the class, the kind and the epsilon of
        the norms, and the MLP. `model_args` sets everything else. It has no
        such file for hybrids.
        """
        architecture, make_arguments = find_base(config)
        packs = config.use_gated_mlp and architecture == PACKED
        hidden = (1 + packs) * config.mlp_dim
        arguments = {
            "img_size": list(config.image_size),
            "patch_size": config.patch_size,
            "in_chans": config.channels,
            "embed_dim": config.width,
            "depth": config.depth,
            "num_heads": config.num_heads,
            "mlp_ratio": _ratio_of(hidden, config.width),
            "global_pool": choose(POOLS, config, "pooling"),
            **make_arguments(config),
        }
        check_parts(config, architecture, arguments, is_exact=True)
        epsilon = fields_of(architecture)["layer_norm_epsilon"]
        act_layer = ACT_LAYERS.get(config.activation)
        written = super().write(config)
        written = written._replace(
            dialect=FLAT_ROOT if config.stem_stages == () else Dialect(),
            computes={
                "layer_norm_epsilon": epsilon,
                "activation": "silu" if config.use_gated_mlp else "exact",
            },
            advice={"activation": f"Pass act_layer={act_layer!r} there."},
        )
        if config.stem_stages is not None:
            return written
        if architecture == PLAIN:
            # Its defaults are those of the class.
            for name, value in CLASS_DEFAULTS.items():
                if arguments[name] == value:
                    del arguments[name]
        settings = config.preprocessing
        mean, deviation = settings.for_channels(config.channels)
        is_squashed = settings.resize_mode == "squash"
        json = {
            "architecture": architecture,
            "num_classes": config.num_classes,
            "num_features": config.width,
            "global_pool": arguments["global_pool"],
            "model_args": arguments,
            "pretrained_cfg": {
                "num_classes": config.num_classes,
                "input_size": [config.channels, *config.image_size],
                "fixed_input_size": True,
                "interpolation": NEAREST_FILTERS[settings.interpolation],
                "crop_pct": settings.crop_fraction,
                "crop_mode": "squash" if is_squashed else "center",
                "mean": mean,
                "std": deviation,
                "first_conv": "patch_embed.proj",
                "classifier": "head",
            },
        }
        if settings.pixel_range:
            json["pixel_range"] = list(settings.pixel_range)
        return written._replace(files={"config.json": json})


def _is_like_rpn(config):
    """Return whether the norms may follow the branches of the blocks."""
    return (
        config.use_pooling_norm
        and not config.use_class_token
        and config.layer_scale_init is None
    )


def _assume(config, hints, shapes):
    """Return the configuration with assumed values, and note them."""
    sizes = (config.width, config.depth, config.patch_size)
    names = (TANH_SIZES.get((*sizes, s)) for s in (None, config.image_size))
    name = next(filter(None, names), None)
    usual = {}
    if "activation" not in hints and name:
        usual["activation"] = ("tanh", "exact", f"as in timm's {name}")
    elif not is_published_size(*sizes[:2]):
        reason = "as in most of timm"
        if "activation" not in hints:
            usual["activation"] = ("exact", "tanh", reason)
        if _is_like_rpn(config) and "norm_placement" not in hints:
            usual["norm_placement"] = ("before", "after", reason)
    for field, (value, other, reason) in usual.items():
        shapes.notes.append(
            "No configuration beside the file states all that its model "
            f"computes: `{field}='{value}'` is assumed, {reason}. Pass "
            f"`{field}='{value}'` to confirm it, or `{field}='{other}'`."
        )
    return dataclasses.replace(
        config, **{f: row[0] for f, row in usual.items()}
    )


# -------------------------------------------- the classes that models are for


def find_base(config: ViTConfig) -> tuple[str, Callable[[ViTConfig], dict]]:
    """Return the architecture whose function builds a model.

    With it comes a function from a configuration to its arguments.

    Raises:
        ValueError: If the class of the architecture cannot have the parts of
            the model; names the field.
    """
    relative, is_gated = config.relative_positions, config.use_gated_mlp
    is_after = config.norm_placement == "after"
    is_clip = config.layer_norm_epsilon == 1e-5
    if relative == "table":
        base = "beit_base_patch16_224", _beit_arguments
    elif relative == "mlp":
        rpn = "rpn_" if is_after else ""
        base = f"vit_relpos_base_patch16_{rpn}224", _relative_arguments
    elif config.use_distillation_token:
        base = "deit_tiny_distilled_patch16_224", _distilled_arguments
    elif is_sapiens(config):
        base = "vit_base_patch16_sapiens2", _eva_arguments
    elif is_eva(config):
        name = "vit_small_patch16_dinov3"
        name = name if is_clip else "eva02_tiny_patch14_224"
        base = name, _eva_arguments
    elif config.norm == "rms":
        name = "aimv2_large_patch14_224" if is_gated else "test_vit4"
        base = name, _plain_arguments
    elif is_gated:
        base = PACKED, _plain_arguments
    elif is_after:
        base = "vit_base_patch16_rpn_224", _plain_arguments
    else:
        name = "vit_base_patch16_clip_224" if is_clip else PLAIN
        base = name, _plain_arguments

    has_map, is_relative = config.pooling.startswith("map"), relative != "none"
    # These classes have few options.
    is_limited = is_relative or config.use_distillation_token
    refused = {
        "representation_size": config.representation_size is not None,
        "use_embedding_norm": config.use_embedding_norm and is_limited,
        # Models with a norm before the first block lack it, and they alone.
        "use_patch_bias": config.use_patch_bias == config.use_embedding_norm,
        "use_block_bias": (
            not config.use_block_bias and (is_limited or is_eva(config))
        ),
        "use_distillation_token": (
            config.use_distillation_token and is_relative
        ),
        "pooling_mlp_dim": (
            config.pooling_mlp_dim is not None and not is_eva(config)
        ),
        "qkv_bias": relative == "table" and config.qkv_bias == "all",
        # Its norms of queries and keys are those of each head.
        "qk_norm": config.qk_norm == "width",
        # Its blocks with norms after the branches have no other norms, and its
        # attention pooling has layer norms, GELU and another MLP.
        "norm_placement": is_after
        and (config.layer_scale_init is not None or config.qk_norm != "none"),
        "pooling": has_map
        and (config.norm == "rms" or is_limited or base[0] == PACKED),
    }
    for field, holds in refused.items():
        if holds:
            raise ValueError(
                f"its class has no {field}={getattr(config, field)!r}"
            )
    return base


def _ratio_of(mlp_dim, width) -> float:
    """Return a ratio for which timm's int(width * ratio) is `mlp_dim`."""
    ratio = mlp_dim / width
    exact = int(width * ratio) == mlp_dim
    return ratio if exact else math.nextafter(ratio, math.inf)


def _init_values(config):
    """Return LayerScale's initial value, which timm leaves out if it is 0."""
    has_scale = config.layer_scale_init is not None
    return (config.layer_scale_init or 1e-5) if has_scale else None


def _plain_arguments(config):
    """Return the arguments of VisionTransformer, beside the common ones."""
    has_token = config.use_class_token or config.num_registers
    return {
        "class_token": config.use_class_token,
        "fc_norm": config.use_pooling_norm,
        "act_layer": choose(ACT_LAYERS, config, "activation"),
        "reg_tokens": config.num_registers,
        "no_embed_class": not config.use_prefix_positions,
        "pre_norm": config.use_embedding_norm,
        "final_norm": config.use_final_norm,
        "qkv_bias": config.qkv_bias == "all",
        "proj_bias": config.use_block_bias,
        "qk_norm": config.qk_norm == "head",
        "scale_attn_norm": config.use_attention_inner_norm,
        "scale_mlp_norm": config.use_mlp_inner_norm,
        "init_values": _init_values(config),
        "pool_include_prefix": bool(has_token and config.pooling == "map"),
    }


def _eva_arguments(config):
    """Return the arguments of Eva, beside the common ones."""
    kind = config.rotary_positions
    is_after = config.use_final_norm and config.use_pooling_norm
    arguments = {
        "class_token": config.use_class_token,
        "num_reg_tokens": config.num_registers,
        "no_embed_class": not config.use_prefix_positions,
        "use_abs_pos_emb": config.position_embedding != "none",
        "use_rot_pos_emb": kind != "none",
        "attn_type": "rope" if config.qkv_bias == "all" else "eva",
        "qkv_bias": config.qkv_bias != "none",
        "qkv_fused": not has_split_projections(config),
        "qk_norm": config.qk_norm == "head",
        "swiglu_mlp": config.use_gated_mlp,
        "swiglu_align_to": int(has_split_gate(config)),
        "scale_mlp": config.use_mlp_inner_norm,
        "scale_attn_inner": config.use_attention_inner_norm,
        "init_values": _init_values(config),
        "attn_only_layer_scale": config.layer_scale_branches == "attention",
        "use_post_norm": config.norm_placement == "after",
        "use_pre_transformer_norm": config.use_embedding_norm,
        "use_post_transformer_norm": config.use_final_norm and not is_after,
        "use_fc_norm": is_after,
        "dynamic_img_size": False,
    }
    if kind != "none":
        reference = config.rotary_reference_size
        # Only axial positions have a choice of axes here.
        is_xy = kind == "mixed" or (
            kind == "axial" and config.rotary_axes == "xy"
        )
        arguments |= {
            "rope_type": choose(ROPE_TYPES, config, "rotary_positions"),
            "rope_temperature": config.rotary_temperature,
            "rope_grid_indexing": "xy" if is_xy else "ij",
            "rope_rotate_half": kind == "centered",
            "ref_feat_shape": reference and list(reference),
        }
        if kind != "centered":
            arguments["rope_grid_offset"] = config.rotary_offset
    if is_sapiens(config):
        arguments["num_kv_heads"] = config.num_heads
    if config.pooling.startswith("map"):
        mlp_dim = config.pooling_mlp_dim or config.mlp_dim
        arguments["attn_pool_num_heads"] = config.pooling_heads
        arguments["attn_pool_mlp_ratio"] = _ratio_of(mlp_dim, config.width)
    return arguments


def _beit_arguments(config):
    """Return the arguments of Beit, beside the common ones."""
    return {
        "qkv_bias": config.qkv_bias != "none",
        "init_values": _init_values(config),
        "use_abs_pos_emb": False,
        "use_rel_pos_bias": True,
        "use_fc_norm": config.use_pooling_norm,
    }


def _relative_arguments(config):
    """Return the arguments of VisionTransformerRelPos."""
    return {
        "class_token": config.use_class_token,
        "fc_norm": config.use_pooling_norm,
        "qkv_bias": config.qkv_bias == "all",
        "qk_norm": config.qk_norm == "head",
        "init_values": _init_values(config),
        "rel_pos_type": "mlp",
        "rel_pos_dim": config.relative_hidden_dim,
        "shared_rel_pos": config.use_shared_relative_positions,
    }


def _distilled_arguments(config):
    """Return the arguments of VisionTransformerDistilled."""
    return {"act_layer": choose(ACT_LAYERS, config, "activation")}


# The defaults of VisionTransformer.
CLASS_DEFAULTS = {
    "reg_tokens": 0,
    "no_embed_class": False,
    "pre_norm": False,
    "final_norm": True,
    "qkv_bias": True,
    "proj_bias": True,
    "qk_norm": False,
    "scale_attn_norm": False,
    "scale_mlp_norm": False,
    "init_values": None,
    "pool_include_prefix": False,
}
# The function of the plain model, and of that with the gate packed.
PLAIN = "vit_base_patch16_224"
PACKED = "vit_giant_patch14_dinov2"
