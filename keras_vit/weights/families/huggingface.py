"""Hugging Face transformers: its Vision Transformers and image towers.

They have two kinds of names: those of ViT, BEiT, DINOv2 and DINOv3, and those
of CLIP, SigLIP and AIMv2.
"""

import dataclasses

from keras_vit.models.config import ViTConfig
from keras_vit.models.text import TextConfig
from keras_vit.preprocessing.description import NEAREST_FILTERS, PILLOW_FILTERS
from keras_vit.weights.families.family import (
    FLAT_CONV,
    NOTHING,
    SAME,
    TORCH,
    TORCH_WRAPPERS,
    VECTOR,
    Dialect,
    Family,
    TextFamily,
    Variant,
    Written,
    choose,
    split_projections,
)
from keras_vit.weights.families.huggingface_types import (
    check_visible,
    describe_tower,
    find_type,
    read_settings,
)
from keras_vit.weights.families.inference import BLOCK, find_hints

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
TEXT = "text_model."
PATCH_EMBEDDING = "embeddings.patch_embedding"
# Pipelines of transformers make probabilities of such logits by a sigmoid.
SEVERAL_LABELS = "multi_label_classification"
# The names of activations, by `activation`.
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

    # ---------------------------------------------------------------- reading

    def prepare(self, shapes, json):
        """Mark the norm of the head for masked patches of BEiT."""
        is_beit = any(name.startswith("beit.") for name in shapes)
        is_norm = "layernorm." if is_beit else "-"
        return {
            f"lm_{n}" if n.startswith(is_norm) else n: (n, None) for n in shapes
        }

    def read_hints(self, json):
        json = describe_tower(json)
        activation = json.get("pooler_act", "tanh")
        hints = {"pooler_act": activation, **read_settings(json)}
        return json, {**hints, "problem_type": json.get("problem_type")}

    def unread(self, config):
        return r"vit\.pooler\.dense\." if config.num_classes else NOTHING

    def complete(self, config, hints, shapes):
        check_visible(config, hints.get("visible", {}))
        changes = {
            name: hints[name]
            for name in ("rotary_positions", "rotary_temperature")
            if name in hints
        }
        if config.num_classes:
            # Some files contain a pooler, which the classifier does not read.
            changes["representation_size"] = None
            if hints["problem_type"] == SEVERAL_LABELS:
                changes["probabilities"] = "sigmoid"
        config = dataclasses.replace(config, **changes)
        if config.representation_size and not config.use_class_token:
            raise ValueError("its pooler reads the first patch")
        activation = hints["pooler_act"]
        if config.representation_size and activation != "tanh":
            raise ValueError(f"its pooler ends in {activation!r}, not in tanh.")
        return config

    def undetermined(self, config, names):
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

    def keeps(self, config):
        return find_type(config)[1].visible

    def class_entries(self, names):
        return {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }

    def _differences(self, config, kind):
        """Yield notes on poolers and image processors that differ."""
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
        """Write config.json of a class, and of its image processor."""
        kind, row = find_type(config)
        architecture = row.kind(config)
        activation = choose(HIDDEN_ACTS, config, "activation")
        if architecture is None:
            raise ValueError(f"{row.kinds[0]} has no classifier")
        height, width = config.image_size
        if height != width and not row.has_rectangles:
            raise ValueError(
                "the code of its class computes square images alone"
            )
        if config.representation_size and config.num_classes:
            raise ValueError(
                "its classifier has no pre-logits layer, which has "
                f"representation_size={config.representation_size} (remove the "
                "head with `model.with_num_classes(0)`, and it is written as "
                "the pooler)"
            )
        found = {
            "architectures": [architecture],
            "model_type": kind,
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.mlp_dim,
            "hidden_act": activation,
            "layer_norm_eps": config.layer_norm_epsilon,
            "image_size": height if height == width else [height, width],
            "patch_size": config.patch_size,
            "num_channels": config.channels,
            "torch_dtype": "float32",
            **row.describe(config),
        }
        check_visible(config, row.visible_fields({**row.defaults, **found}))
        if config.num_classes:
            labels = [f"LABEL_{i}" for i in range(config.num_classes)]
            found |= self.class_entries(labels)
            if "sigmoid" in (
                config.classifier_activation,
                config.probabilities,
            ):
                found["problem_type"] = SEVERAL_LABELS
        names = CLIP_NAMES if row.has_clip_names else VIT_NAMES
        prefix = row.prefix if config.num_classes else ""
        gated = row.gated_changes if config.use_gated_mlp else ()
        changes = (*gated, *row.changes, (r"^(vit|vision_model)\.", prefix))
        masks = {}
        if kind.startswith("dinov"):
            ones = (1, 1) if kind == "dinov3_vit" else (1,)
            masks["vit.embeddings.mask_token"] = (*ones, config.width)
        if kind == "dinov3_vit" and not config.num_registers:
            masks["vit.embeddings.register_tokens"] = (1, 0, config.width)
        return Written(
            names.with_variants(v for v in names.variants if v.used_by(config)),
            {
                "config.json": found,
                "preprocessor_config.json": _processor_json(config),
            },
            Dialect(changes),
            # In DINOv2, registers have no positions.
            prefix_rows=1 if config.num_registers else None,
            adds=masks,
            # The projection of CLIP has no bias.
            drops=("predictions/bias",) if config.use_embedding_norm else (),
            notes=self._differences(config, architecture),
        )


def _block_of_clip(layer):
    """Return the names of a block behind the name of its layer."""
    projections = ("q_proj", "k_proj", "v_proj")
    return {
        BLOCK + "attention_norm": layer + "layer_norm1",
        BLOCK + "attention/qkv": split_projections(
            layer + "self_attn.", projections
        ),
        BLOCK + "attention/out": layer + "self_attn.out_proj",
        BLOCK + "mlp_norm": layer + "layer_norm2",
        BLOCK + "mlp/hidden": layer + "mlp.fc1",
        BLOCK + "mlp/out": layer + "mlp.fc2",
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
        **_block_of_clip(TOWER_LAYER),
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

    def prepare(self, shapes, json):
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

    def unread(self, config):
        """Return the norm and the pooling that the model does not read."""
        patterns = []
        if not config.use_final_norm:
            patterns.append(r"vision_model\.post_layernorm\.")
        if config.pooling not in ("map", "probe"):
            patterns.append(r"vision_model\.head\.")
        return "|".join(patterns) or NOTHING

    def complete(self, config, hints, shapes):
        config = super().complete(config, hints, shapes)
        has_classifier = any(n.startswith("classifier.") for n in shapes.stored)
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
        fields = ("layer_norm_epsilon", "activation", "pooling")
        yield "the names of CLIP, SigLIP or AIMv2", fields
        if config.rotary_positions != "none":
            fields = ("rotary_positions", "rotary_temperature")
            yield "angles of the class token", fields
        if not config.use_final_norm:
            yield "no norm after the last block", ("use_final_norm",)


def dense_processor_json(config: ViTConfig) -> dict:
    """Return the preprocessing of the images of DPT, which are not cropped."""
    settings = dataclasses.replace(
        config.preprocessing, resize_mode="squash", crop_fraction=1.0
    )
    return {
        **_processor_json(dataclasses.replace(config, preprocessing=settings)),
        "image_processor_type": "DPTImageProcessor",
        "keep_aspect_ratio": False,
        "ensure_multiple_of": 1,
    }


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
        "resample": PILLOW_FILTERS.index(
            NEAREST_FILTERS[settings.interpolation]
        ),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": deviation,
    }
    is_squashed = settings.resize_mode == "squash"
    if not is_squashed:
        found["size"] = {"shortest_edge": max(sizes)}
    if sizes != config.image_size or not is_squashed:
        # ViTImageProcessor cannot crop; these can.
        kind = "DeiTImageProcessor" if is_squashed else "BitImageProcessor"
        found["image_processor_type"] = kind
        found["do_center_crop"] = True
        found["crop_size"] = dict(zip(sides, config.image_size))
    if settings.pixel_range:
        found["pixel_range"] = list(settings.pixel_range)
    return found


# What a configuration of a text tower states by leaving it out.
CLIP_TEXT = {
    "vocab_size": 49_408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "projection_dim": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49_407,
}
SIGLIP_TEXT = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "projection_size": None,
}
TEXT_DEFAULTS = {
    "clip": CLIP_TEXT,
    "metaclip_2": CLIP_TEXT,
    "siglip": SIGLIP_TEXT,
    "siglip2": SIGLIP_TEXT,
}


class HuggingFaceText(TextFamily):
    """The text towers of CLIP, MetaCLIP 2, SigLIP and SigLIP 2.

    Source: the model definitions of transformers 5.23.
    """

    title = "Hugging Face transformers (CLIP, SigLIP)"
    style = {
        **TORCH,
        "embeddings": (".weight", SAME),
        "embedding": (".weight", SAME),
    }
    layers = {
        "token_embedding": TEXT + "embeddings.token_embedding",
        "positions": TEXT + "embeddings.position_embedding",
        **_block_of_clip(TEXT + "encoder.layers.{i}."),
        "final_norm": TEXT + "final_layer_norm",
        "projection": "text_projection",
    }
    recognise = (TEXT + "embeddings.token_embedding.weight",)
    aliases = ((r"^text_model\.head\.", "text_projection."),)
    ignore = (
        r"vision_|visual_projection\.|logit_(scale|bias)$|.*\.position_ids$"
    )

    def read(self, json, shapes, known=None):
        kind = json.get("model_type")
        if kind not in TEXT_DEFAULTS:
            raise ValueError(
                "a text tower needs the config.json beside it, with the "
                f"model_type {', '.join(TEXT_DEFAULTS)}. It has "
                f"model_type={kind!r}"
            )
        defaults = TEXT_DEFAULTS[kind]
        stated, older = json.get("text_config"), json.get("text_config_dict")
        tower = {**defaults, **(stated if isinstance(stated, dict) else {})}
        if isinstance(older, dict) and defaults is CLIP_TEXT:
            # Of the first versions; what it leaves out has its default.
            tower |= {**defaults, **older}
        # As for image towers; a name that it does not know is an error.
        activation = find_hints({"hidden_act": tower["hidden_act"]})
        is_clip, end = defaults is CLIP_TEXT, tower.get("eos_token_id")
        fields = {
            "vocabulary_size": tower["vocab_size"],
            "context_length": tower["max_position_embeddings"],
            "width": tower["hidden_size"],
            "depth": tower["num_hidden_layers"],
            "mlp_dim": tower["intermediate_size"],
            "num_heads": tower["num_attention_heads"],
            "layer_norm_epsilon": tower["layer_norm_eps"],
            "use_causal_mask": is_clip,
            **activation,
        }
        if not is_clip:
            size = tower["projection_size"]
            size = tower["hidden_size"] if size is None else size
            fields |= {"pooling": "last", "output_size": size}
            return TextConfig(**fields, use_output_bias=True)
        if kind == "clip" and end == 2:
            # Files of early versions state a wrong end; the right one is the
            # last in the vocabulary.
            fields |= {"pooling": "largest"}
        else:
            fields |= {"pooling": "end", "end_token": end}
        size = json.get("projection_dim", CLIP_TEXT["projection_dim"])
        return TextConfig(**fields, output_size=size)


VIT_NAMES, CLIP_NAMES = HuggingFace(), HuggingFaceClip()
