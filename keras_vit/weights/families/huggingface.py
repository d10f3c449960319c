"""Hugging Face transformers: its Vision Transformers and image towers.

They have two kinds of names: those of ViT, BEiT, DINOv2 and DINOv3, and those
of CLIP, SigLIP and AIMv2.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.weights.families.family import (
    FLAT_CONV,
    NOTHING,
    SAME,
    TORCH,
    TORCH_WRAPPERS,
    VECTOR,
    Changes,
    Dialect,
    Family,
    Variant,
    split_projections,
)
from keras_vit.weights.families.huggingface_types import (
    check_expected,
    describe_tower,
    read_settings,
)

BLOCK = "block_#/"
LAYER = "vit.encoder.layer.{i}."
ATTENTION = LAYER + "attention.attention."
BIAS_TABLE = "relative_position_bias.relative_position_bias_table"
# Prefixes of the names in models with a head.
MODELS = ("vit", "deit", "dpt", "ijepa", "beit", "data2vec_vision") + (
    "dinov2_with_registers",
    "dinov2",
    "vision_tower",  # Of InternVL.
)
TOWER = "vision_model."
TOWER_LAYER = TOWER + "encoder.layers.{i}."
HEAD = TOWER + "head."
PATCH_EMBEDDING = "embeddings.patch_embedding"
HIDDEN_ACTS = {
    "exact": "gelu",
    "tanh": "gelu_pytorch_tanh",
    "quick": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
}


class HuggingFace(Family):
    """The names of ViT, DeiT, BEiT, I-JEPA, DPT, DINOv2 and DINOv3."""

    title = "Hugging Face transformers"
    style = {
        **TORCH,
        "scale": ("", SAME),
        "query_bias": (".query.bias", SAME),
        "value_bias": (".value.bias", SAME),
    }
    layers = {
        "patch_encoder": "vit.embeddings.patch_embeddings.projection",
        "class_token": "vit.embeddings.cls_token",
        "distillation_token": "vit.embeddings.distillation_token",
        "registers": "vit.embeddings.register_tokens",
        "position_embedding": "vit.embeddings.position_embeddings",
        "relative_positions_#": ATTENTION + BIAS_TABLE,
        "relative_positions": "vit.encoder." + BIAS_TABLE,
        BLOCK + "attention_norm": LAYER + "layernorm_before",
        BLOCK + "attention": LAYER + "attention.attention",
        BLOCK + "attention/qkv": split_projections(ATTENTION),
        BLOCK + "attention/query_norm": ATTENTION + "q_norm",
        BLOCK + "attention/key_norm": ATTENTION + "k_norm",
        BLOCK + "attention/out": LAYER + "attention.output.dense",
        BLOCK + "attention_scale": LAYER + "lambda_1",
        BLOCK + "mlp_norm": LAYER + "layernorm_after",
        BLOCK + "mlp/hidden": LAYER + "intermediate.dense",
        BLOCK + "mlp/out": LAYER + "output.dense",
        BLOCK + "mlp_scale": LAYER + "lambda_2",
        "encoder_norm": "vit.layernorm",
        "pooling_norm": "vit.pooler.layernorm",
        "pre_logits": "vit.pooler.dense",
        "predictions": "classifier",
        "predictions/class_head": "cls_classifier",
        "predictions/teacher_head": "distillation_classifier",
    }
    recognise = (
        *(
            f"{prefix}embeddings.patch_embeddings.projection.weight"
            for prefix in ("", *(f"{name}." for name in MODELS))
        ),
        "embeddings.patch_embeddings.weight",
    )
    variants = (
        Variant(
            r"vit\.encoder\.layer\.0\.intermediate\.gate\.",
            {
                BLOCK + "mlp/hidden": (
                    LAYER + "intermediate.gate",
                    LAYER + "intermediate.dense",
                ),
            },
            used_by=lambda config: (
                config.use_gated_mlp and config.rotary_positions != "none"
            ),
        ),
    )
    wrappers = TORCH_WRAPPERS
    # A model without a head has no prefix. Version 5 renamed the modules in
    # memory, so a raw state dict has other names than a saved file.
    aliases = (
        (rf"^({'|'.join(MODELS)})\.", "vit."),
        (
            r"^(?=embeddings\.|encoder\.|layers?\.|(layer)?norm\.|pooler\.)",
            "vit.",
        ),
        (r"^vit\.layers?\.", "vit.encoder.layer."),
        (r"^vit\.norm\.", "vit.layernorm."),
        (
            r"\.patch_embeddings\.(weight|bias)$",
            r".patch_embeddings.projection.\1",
        ),
        (r"\.norm1\.", ".layernorm_before."),
        (r"\.norm2\.", ".layernorm_after."),
        (r"\.attention\.q_proj\.", ".attention.attention.query."),
        (r"\.attention\.k_proj\.", ".attention.attention.key."),
        (r"\.attention\.v_proj\.", ".attention.attention.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.attention\.projection_layer\.", ".attention.output.dense."),
        (r"(?<!n)\.attention\.([qk]_norm)\.", r".attention.attention.\1."),
        (r"\.mlp\.(fc1|up_proj|weights_in)\.", ".intermediate.dense."),
        (r"\.mlp\.gate_proj\.", ".intermediate.gate."),
        (r"\.mlp\.(fc2|down_proj|weights_out)\.", ".output.dense."),
        (r"\.layer_scale([12])\.lambda1$", r".lambda_\1"),
    )
    ignore = (
        r"vit\.embeddings\.(mask_token|position_ids)$|decoder\.|lm_|neck\."
        r"|(decode_|auxiliary_)?head\.|fpn\d\.|.*\.relative_position_index$"
        r"|language_model\.|multi_modal_projector\."
    )
    optional_bias = ("attention/qkv",)
    normalization = None
    position_resize = "bicubic"
    layer_norm_epsilon = 1e-12
    has_later_parts = True
    endings = {"": ""}
    stated_fields = ("activation", "layer_norm_epsilon")

    # ---------------------------------------------------------------- reading

    def describe(self, json):
        """Return the configuration of the image model, with defaults."""
        return describe_tower(json)

    def prepare(self, shapes):
        """Mark the norm of the head for masked patches of BEiT."""
        is_beit = any(name.startswith("beit.") for name in shapes)
        is_norm = "layernorm." if is_beit else "-"
        return {
            f"lm_{n}" if n.startswith(is_norm) else n: (n, None) for n in shapes
        }

    def read_hints(self, json):
        """Return what the class in config.json implies."""
        activation = json.get("pooler_act", "tanh")
        return {"pooler_act": activation, **read_settings(json)}

    def unread(self, config):
        """Return the pooler, which no classifier reads."""
        return r"vit\.pooler\.dense\." if config.num_classes else NOTHING

    def complete(self, config, hints, shapes):
        """Return the configuration of the class."""
        check_expected(config, hints.get("expected", {}))
        changes = {
            name: hints[name]
            for name in ("rotary_positions", "rotary_temperature")
            if name in hints
        }
        if config.num_classes:
            # Some files contain a pooler, which the classifier does not read.
            changes["representation_size"] = None
        config = dataclasses.replace(config, **changes)
        if config.representation_size and not config.use_class_token:
            raise ValueError("its pooler reads the first patch")
        activation = hints["pooler_act"]
        if config.representation_size and activation != "tanh":
            raise ValueError(f"its pooler ends in {activation!r}, not in tanh.")
        return config

    def undetermined(self, config, names):
        """Yield parts of a model whose settings config.json states."""
        fields = ("layer_norm_epsilon", "activation", "pooling")
        if config.layer_scale_init is not None or config.num_registers:
            yield "LayerScale or register tokens", fields
        if config.use_distillation_token:
            yield "a distillation token", ("pooling",)
        if config.position_embedding == "none":
            yield "no position table", ("rotary_positions",)
        if not config.use_final_norm:
            yield "no norm after the last block", ("use_final_norm",)

    # ---------------------------------------------------------------- writing

    def known_fields(self, config):
        """Return the later fields that the class of a model knows."""
        return find_class(config).fields

    def written_by(self, config):
        """Return the family whose names the class of a model uses."""
        return find_class(config).names

    def dialect_of(self, config):
        """Return the names that the class of a model writes."""
        row = find_class(config)
        prefix = row.prefix if config.num_classes else ""
        gated = row.gated_changes if config.use_gated_mlp else ()
        changes = (*gated, *row.changes, (r"^(vit|vision_model)\.", prefix))
        return Dialect(changes)

    def prefix_rows(self, config):
        """Return 1 for DINOv2, whose registers have no positions."""
        if config.num_registers:
            return 1
        return config.use_prefix_positions * config.num_prefix_tokens

    def adds(self, config):
        """Return the shapes of arrays that only DINOv2 and DINOv3 have."""
        width, start = config.width, "vit.embeddings."
        kind = find_class(config).model_type
        found = {}
        if kind.startswith("dinov"):
            ones = (1, 1) if kind == "dinov3_vit" else (1,)
            found[start + "mask_token"] = (*ones, width)
        if kind == "dinov3_vit" and not config.num_registers:
            found[start + "register_tokens"] = (1, 0, width)
        return found

    def class_entries(self, names):
        """Return the entries with the names of the classes."""
        return {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }

    def notes(self, config):
        """Yield notes on poolers and image processors that differ."""
        kind = find_class(config).kinds[bool(config.num_classes)]
        if kind in ("ViTModel", "DeiTModel") and not config.representation_size:
            yield (
                f"{kind} has a pooler, which this model does not have; load it "
                "with add_pooling_layer=False, or its pooler_output is random"
            )
        sizes = config.preprocessing.uncropped_size(config.image_size)
        is_shortest = config.preprocessing.resize_mode == "shortest"
        if is_shortest and sizes[0] != sizes[1]:
            yield (
                "this model resizes a photo until it covers "
                f"{sizes[0]}x{sizes[1]} pixels, but an image processor of "
                f"transformers resizes its short side to {max(sizes)} pixels, "
                "so it shows less of most photos"
            )

    def write(self, config):
        """Return config.json of a class, and of its image processor."""
        row = find_class(config)
        _refuse(config, row)
        height, width = config.image_size
        found = {
            "architectures": [row.kinds[bool(config.num_classes)]],
            "model_type": row.model_type,
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.mlp_dim,
            "hidden_act": HIDDEN_ACTS[config.activation],
            "layer_norm_eps": config.layer_norm_epsilon,
            "image_size": height if height == width else [height, width],
            "patch_size": config.patch_size,
            "num_channels": config.channels,
            "torch_dtype": "float32",
            **row.describe(config),
        }
        if config.num_classes:
            labels = [f"LABEL_{i}" for i in range(config.num_classes)]
            found |= self.class_entries(labels)
        return {
            "config.json": found,
            "preprocessor_config.json": _processor_json(config),
        }


class HuggingFaceClip(HuggingFace):
    """The names of the image towers of CLIP, MLCD, SigLIP and AIMv2."""

    title = "Hugging Face transformers (CLIP, SigLIP, AIMv2)"
    style = {
        **TORCH,
        "token": ("", VECTOR),
        "embedding": (".weight", SAME),
        "class_angles": ("", SAME),
    }
    layers = {
        "patch_encoder": TOWER + PATCH_EMBEDDING,
        "patch_norm": TOWER + "embeddings.rms_norm",
        "class_token": TOWER + "embeddings.class_embedding",
        "position_embedding": TOWER + "embeddings.position_embedding",
        "embedding_norm": TOWER + "pre_layrnorm",
        "rotary_positions": TOWER + "class_pos_emb",
        BLOCK + "attention_norm": TOWER_LAYER + "layer_norm1",
        BLOCK + "attention/qkv": split_projections(
            TOWER_LAYER + "self_attn.", ("q_proj", "k_proj", "v_proj")
        ),
        BLOCK + "attention/out": TOWER_LAYER + "self_attn.out_proj",
        BLOCK + "mlp_norm": TOWER_LAYER + "layer_norm2",
        BLOCK + "mlp/hidden": TOWER_LAYER + "mlp.fc1",
        BLOCK + "mlp/out": TOWER_LAYER + "mlp.fc2",
        "encoder_norm": TOWER + "post_layernorm",
        "pooling": HEAD + "probe",
        "pooling/query": HEAD + "attention.query",
        "pooling/key_value": (HEAD + "attention.key", HEAD + "attention.value"),
        "pooling/out": HEAD + "attention.out_proj",
        "pooling/norm": HEAD + "layernorm",
        "pooling/mlp/hidden": HEAD + "mlp.fc1",
        "pooling/mlp/out": HEAD + "mlp.fc2",
        "predictions": "classifier",
    }
    recognise = tuple(
        f"{prefix}embeddings.{name}.weight"
        for prefix in ("", TOWER)
        for name in ("patch_embedding", "patch_embed")
    )
    variants = (
        Variant(
            r"vision_model\.embeddings\.patch_embedding\.flat\.",
            {"patch_encoder": TOWER + PATCH_EMBEDDING + ".flat"},
            FLAT_CONV,
        ),
        Variant(
            r"vision_model\.encoder\.layers\.0\.mlp\.gate\.",
            {
                BLOCK + "mlp/hidden": (
                    TOWER_LAYER + "mlp.gate",
                    TOWER_LAYER + "mlp.fc1",
                ),
            },
            used_by=lambda config: config.use_gated_mlp,
        ),
    )
    aliases = (
        (
            r"^(?=embeddings\.|encoder\.|pre_layrnorm\.|post_layernorm\.|head\.|"
            r"class_pos_emb$)",
            TOWER,
        ),
        (r"^rms_norm\.", TOWER + "rms_norm."),
        (r"^vision_model\.rms_norm\.", TOWER + "post_layernorm."),
        (r"\.patch_embed\.", ".patch_embedding."),
        (r"\.rms_norm([12])\.", r".layer_norm\1."),
        (r"(layers\.\d+)\.attention\.", r"\1.self_attn."),
        (r"\.ffn\.gate_proj\.", ".mlp.gate."),
        (r"\.ffn\.up_proj\.", ".mlp.fc1."),
        (r"\.ffn\.down_proj\.", ".mlp.fc2."),
        (r"\.head\.cls_token$", ".head.probe"),
        (r"\.head\.k_proj\.", ".head.attention.key."),
        (r"\.head\.v_proj\.", ".head.attention.value."),
        (r"\.head\.output_proj\.", ".head.attention.out_proj."),
        (r"^visual_projection\.", "classifier."),
    )
    ignore = r"text_|logit_(scale|bias)$|.*\.(position_ids|inv_freq)$"
    optional_bias = ("attention/qkv", "predictions")
    layer_norm_epsilon = 1e-6
    joins = {
        f"{HEAD}attention.in_proj_{end}": tuple(
            f"{HEAD}attention.{part}.{end}"
            for part in ("query", "key", "value")
        )
        for end in ("weight", "bias")
    }
    endings = {}  # `HuggingFace` writes them.

    def prepare(self, shapes):
        """Take the projections of the pooling apart, and mark flat patches."""
        renamed = {}
        for name, shape in shapes.items():
            layer, _, ending = name.rpartition(".")
            is_patches = layer.endswith(PATCH_EMBEDDING) and len(
                shapes.get(f"{layer}.weight", ())
            )
            if "head.attention.in_proj_" in name and shape and not shape[0] % 3:
                width = shape[0] // 3
                ending = "." + name.rsplit("_", 1)[1]
                start = name.partition("in_proj_")[0]
                for index, part in enumerate(("query", "key", "value")):
                    piece = (slice(index * width, (index + 1) * width),)
                    renamed[start + part + ending] = (name, piece)
            elif is_patches == 2 and ending in ("weight", "bias"):
                flat = PATCH_EMBEDDING + ".flat"
                renamed[name.replace(PATCH_EMBEDDING, flat)] = (name, None)
            else:
                renamed[name] = (name, None)
        return renamed

    def read_hints(self, json):
        """Return what the class in config.json implies."""
        return read_settings(json)

    def unread(self, config):
        """Return the norm and the pooling that the model does not read."""
        patterns = []
        if not config.use_final_norm:
            patterns.append(r"vision_model\.post_layernorm\.")
        if config.pooling not in ("map", "probe"):
            patterns.append(r"vision_model\.head\.")
        return "|".join(patterns) or NOTHING

    def complete(self, config, hints, shapes):
        """Return the configuration of the class."""
        check_expected(config, hints.get("expected", {}))
        names = shapes.stored
        has_classifier = any(name.startswith("classifier.") for name in names)
        if has_classifier and not hints.get("architecture"):
            raise ValueError(
                "it has a classifier, whose pooling follows from the class: "
                "its config.json lacks `architectures`"
            )
        if config.pooling == "avg" and hints.get("use_final_norm") is False:
            # The norm is in the file, and the classifier does not read it.
            config = dataclasses.replace(config, use_final_norm=False)
        return config

    def undetermined(self, config, names):
        """Yield parts of a tower whose settings config.json states."""
        fields = ("layer_norm_epsilon", "activation", "pooling")
        yield "the names of CLIP, SigLIP or AIMv2", fields
        if config.rotary_positions != "none":
            fields = ("rotary_positions", "rotary_temperature")
            yield "angles of the class token", fields
        if not config.use_final_norm:
            yield "no norm after the last block", ("use_final_norm",)

    def drops(self, config):
        """Return the bias of the projection, which CLIP lacks."""
        return ("predictions/bias",) if config.use_embedding_norm else ()


def _processor_json(config):
    """Return the preprocessing of the images."""
    settings = config.preprocessing
    mean, deviation = settings.for_channels(config.channels)
    sides = ("height", "width")
    sizes = settings.uncropped_size(config.image_size)
    found = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": dict(zip(sides, sizes)),
        "resample": {"bilinear": 2, "bicubic": 3}[settings.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": deviation,
    }
    if settings.resize_mode == "shortest":
        found["size"] = {"shortest_edge": max(sizes)}
    if sizes != config.image_size or settings.resize_mode == "shortest":
        # ViTImageProcessor cannot crop; these can.
        is_squashed = settings.resize_mode == "squash"
        kind = "DeiTImageProcessor" if is_squashed else "BitImageProcessor"
        found["image_processor_type"] = kind
        found["do_center_crop"] = True
        found["crop_size"] = dict(zip(sides, config.image_size))
    return found


# -------------------------------------------- the classes that models are for


class ModelClass(NamedTuple):
    """The classes of transformers with one configuration.

    Args:
        model_type: The `model_type` of its configuration.
        fits: Returns whether a model is of this row, if of any.
        fields: Fields of ViTConfig after 2021 that it can express.
        kinds: Names of the class without and with a head; None if there is
            none.
        prefix: Prefix of the names in a class with a head.
        names: The family of its names.
        changes: Changes of these names.
        describe: Returns the entries of config.json beside the common ones.
        gated_changes: Changes before these, for models with a gated MLP.
    """

    model_type: str
    fits: Callable[[ViTConfig], bool]
    fields: tuple[str, ...]
    kinds: tuple[str, str | None]
    prefix: str
    names: Family
    changes: Changes = ()
    describe: Callable[[ViTConfig], dict] = lambda config: {}
    gated_changes: Changes = ()


def find_class(config: ViTConfig) -> ModelClass:
    """Return the classes that fit a model."""
    return next(row for row in CLASSES if row.fits(config))


def _refuse(config, row):
    """Raise a ValueError for a model whose arrays hide that it has no class."""
    kind, averages = row.model_type, config.pooling == "avg"
    has_biases = config.use_block_bias or config.qkv_bias != "none"
    for text, holds in {
        f"it has no activation={config.activation!r}": (
            config.activation not in HIDDEN_ACTS
        ),
        f"{row.kinds[0]} has no classifier": (
            config.num_classes > 0 and row.kinds[1] is None
        ),
        "the code of its class computes square images alone": (
            config.image_size[0] != config.image_size[1]
            and kind not in WITH_RECTANGLES
        ),
        "its classifier has no pre-logits layer, which has "
        f"representation_size={config.representation_size} (remove the head "
        "with `model.with_num_classes(0)`, and it is written as the pooler)": (
            bool(config.representation_size and config.num_classes)
        ),
        # Its tokens are those before the last norm.
        "its CLIP pools by the class token, not by pooling='none'": (
            kind == "clip_vision_model" and config.pooling == "none"
        ),
        "its MLP has a whole `mlp_ratio`": (
            kind.startswith("dinov2") and _dinov2_ratio(config) is None
        ),
        "its DINOv3 has LayerScale": (
            kind == "dinov3_vit" and config.layer_scale_init is None
        ),
        "its DINOv3 has no position table": (
            kind == "dinov3_vit" and config.position_embedding != "none"
        ),
        "its BEiT normalises the average, or else before the pooling": (
            kind == "beit" and averages != config.use_pooling_norm
        ),
        "its BEiT has biases of queries and values": (
            kind == "beit" and config.qkv_bias != "query_value"
        ),
        "its AIMv2 has no class token, and no biases in blocks": (
            kind == "aimv2_vision_model"
            and (config.use_class_token or has_biases)
        ),
    }.items():
        if holds:
            raise ValueError(text)


def _describe_vit(config):
    found = {
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": config.attention_dropout_rate,
        "initializer_range": 0.02,
        "encoder_stride": config.patch_size,
    }
    if config.representation_size:
        found["pooler_output_size"] = config.representation_size
        found["pooler_act"] = "tanh"
    return found


def _dinov2_ratio(config) -> int | None:
    """Return the whole `mlp_ratio` for which DINOv2 has the MLP of a model."""
    for ratio in range(1, 65):
        hidden = config.width * ratio
        if config.use_gated_mlp:
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp_dim:
            return ratio
    return None


def _describe_dinov2(config):
    found = {
        "layerscale_value": config.layer_scale_init,
        "use_swiglu_ffn": config.use_gated_mlp,
        "mlp_ratio": _dinov2_ratio(config),
        "apply_layernorm": True,
    }
    if config.use_gated_mlp:
        found["hidden_act"] = "gelu"  # Its gates are SiLU nevertheless.
    if config.num_registers:
        found["num_register_tokens"] = config.num_registers
    return found


def _describe_dinov3(config):
    return {
        "layerscale_value": config.layer_scale_init,
        "num_register_tokens": config.num_registers,
        "rope_theta": config.rotary_temperature,
        "use_gated_mlp": config.use_gated_mlp,
        "query_bias": config.qkv_bias != "none",
        "key_bias": config.qkv_bias == "all",
        "value_bias": config.qkv_bias != "none",
        "proj_bias": True,
        "mlp_bias": True,
        "apply_layernorm": True,
    }


def _describe_beit(config):
    is_shared = config.use_shared_relative_positions
    return {
        "use_mean_pooling": config.pooling == "avg",
        "use_relative_position_bias": (
            config.relative_positions == "table" and not is_shared
        ),
        "use_shared_relative_position_bias": is_shared,
        "use_absolute_position_embeddings": (
            config.position_embedding != "none"
        ),
        # With 0, BEiT would have no LayerScale.
        "layer_scale_init_value": config.layer_scale_init or 1e-5,
    }


def _describe_aimv2(config):
    return {
        "rms_norm_eps": config.layer_norm_epsilon,
        "use_head": config.pooling == "probe",
        "qkv_bias": False,
        "mlp_bias": False,
        "is_native": False,
    }


# Model types whose code runs on a model whose images are not square.
WITH_RECTANGLES = ("vit", "deit", "ijepa", "dinov3_vit")
DINOV2_NAMES = (
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".layer_scale\1.lambda1"),
)
PACKED_NAMES = (
    (r"\.intermediate\.dense\.", ".mlp.weights_in."),
    (r"(\d)\.output\.dense\.", r"\1.mlp.weights_out."),
)
MLP_NAMES = (
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(\d)\.output\.dense\.", r"\1.mlp.fc2."),
)
DINOV3_NAMES = (
    *DINOV2_NAMES,
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.gate\.", ".mlp.gate_proj."),
    (r"\.intermediate\.dense\.", ".mlp.up_proj."),
    (r"(\d)\.output\.dense\.", r"\1.mlp.down_proj."),
    (r"\.patch_embeddings\.projection\.", ".patch_embeddings."),
    (r"^vit\.encoder\.", "vit."),
    (r"^vit\.layernorm\.", "vit.norm."),
)
AIMV2_NAMES = (
    (r"\.patch_embedding\.", ".patch_embed."),
    (r"\.layer_norm([12])\.", r".rms_norm\1."),
    (r"\.self_attn\.", ".attention."),
    (r"\.mlp\.gate\.", ".ffn.gate_proj."),
    (r"\.mlp\.fc1\.", ".ffn.up_proj."),
    (r"\.mlp\.fc2\.", ".ffn.down_proj."),
    (r"\.post_layernorm\.", ".rms_norm."),
    (r"\.head\.probe$", ".head.cls_token"),
    (r"\.head\.attention\.key\.", ".head.k_proj."),
    (r"\.head\.attention\.value\.", ".head.v_proj."),
    (r"\.head\.attention\.out_proj\.", ".head.output_proj."),
)
VIT_NAMES, CLIP_NAMES = HuggingFace(), HuggingFaceClip()
# The first row that fits counts.
CLASSES = (
    ModelClass(
        "aimv2_vision_model",
        lambda config: (
            config.norm == "rms" and config.rotary_positions == "none"
        ),
        ("norm", "use_patch_norm", "use_block_bias", "qkv_bias")
        + ("use_gated_mlp",),
        ("Aimv2VisionModel", None),
        "",
        CLIP_NAMES,
        AIMV2_NAMES,
        _describe_aimv2,
    ),
    ModelClass(
        "clip_vision_model",
        lambda config: config.use_embedding_norm,
        ("use_embedding_norm", "use_patch_bias"),
        ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
        "vision_model.",
        CLIP_NAMES,
        ((r"^classifier\.", "visual_projection."),),
        lambda config: {"projection_dim": config.num_classes or 512},
    ),
    ModelClass(
        "siglip_vision_model",
        lambda config: config.pooling == "map" and not config.use_class_token,
        (),
        ("SiglipVisionModel", None),
        "",
        CLIP_NAMES,
        (),
        lambda config: {"vision_use_head": True},
    ),
    ModelClass(
        "dinov3_vit",
        lambda config: config.rotary_positions == "centered",
        ("rotary_positions", "num_registers", "layer_scale_init", "qkv_bias")
        + ("use_gated_mlp", "use_prefix_positions"),
        ("DINOv3ViTModel", None),
        "",
        VIT_NAMES,
        DINOV3_NAMES,
        _describe_dinov3,
    ),
    ModelClass(
        "beit",
        lambda config: (
            config.relative_positions == "table"
            or config.qkv_bias == "query_value"
        ),
        ("relative_positions", "qkv_bias", "layer_scale_init")
        + ("use_pooling_norm",),
        ("BeitModel", "BeitForImageClassification"),
        "beit.",
        VIT_NAMES,
        (),
        _describe_beit,
    ),
    ModelClass(
        "deit",
        lambda config: config.pooling == "distilled",
        ("use_distillation_token", "representation_size"),
        ("DeiTModel", "DeiTForImageClassificationWithTeacher"),
        "deit.",
        VIT_NAMES,
        (),
        _describe_vit,
    ),
    ModelClass(
        "deit",
        lambda config: config.use_distillation_token,
        ("use_distillation_token", "representation_size"),
        ("DeiTModel", "DeiTForImageClassification"),
        "deit.",
        VIT_NAMES,
        (),
        _describe_vit,
    ),
    ModelClass(
        "dinov2_with_registers",
        lambda config: (
            config.layer_scale_init is not None and config.num_registers > 0
        ),
        ("num_registers", "layer_scale_init", "use_gated_mlp")
        + ("use_prefix_positions",),
        (
            "Dinov2WithRegistersModel",
            "Dinov2WithRegistersForImageClassification",
        ),
        "dinov2_with_registers.",
        VIT_NAMES,
        (*DINOV2_NAMES, *MLP_NAMES),
        _describe_dinov2,
        PACKED_NAMES,
    ),
    ModelClass(
        "dinov2",
        lambda config: config.layer_scale_init is not None,
        ("layer_scale_init", "use_gated_mlp"),
        ("Dinov2Model", "Dinov2ForImageClassification"),
        "dinov2.",
        VIT_NAMES,
        (*DINOV2_NAMES, *MLP_NAMES),
        _describe_dinov2,
        PACKED_NAMES,
    ),
    ModelClass(
        "ijepa",
        lambda config: (
            not config.use_class_token and config.pooling in ("avg", "none")
        ),
        (),
        ("IJepaModel", "IJepaForImageClassification"),
        "ijepa.",
        VIT_NAMES,
        (),
        _describe_vit,
    ),
    ModelClass(
        "vit",
        lambda config: True,
        ("representation_size",),
        ("ViTModel", "ViTForImageClassification"),
        "vit.",
        VIT_NAMES,
        (),
        _describe_vit,
    ),
)
