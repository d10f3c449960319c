"""Hugging Face transformers: ViTModel and ViTForImageClassification."""

import dataclasses

from keras_vit.models.config import ViTConfig
from keras_vit.weights.huggingface.classes import (
    find_class_family,
    make_config_json,
)
from keras_vit.weights.huggingface.descriptions import describe_classes
from keras_vit.weights.huggingface.requirements import TRANSFORMERS_VALUES
from keras_vit.weights.huggingface.tower_settings import (
    describe_tower,
    read_settings,
)
from keras_vit.weights.huggingface.visible_parts import check_expected
from keras_vit.weights.layer_shapes import BLOCK, RELATIVE
from keras_vit.weights.layouts import (
    NOTHING,
    TORCH_WRAPPERS,
    Dialect,
    Layout,
    NameVariant,
)
from keras_vit.weights.styles import LATER_TORCH, SAME, TORCH
from keras_vit.weights.writers import folder_writer

BLOCK_NAME = "vit.encoder.layer.{i}."
BIAS_TABLE = "relative_position_bias.relative_position_bias_table"
# Prefixes of the names in models with a head.
MODELS = ("vit", "deit", "dpt", "ijepa", "beit", "data2vec_vision") + (
    "dinov2_with_registers",
    "dinov2",
    "vision_tower",  # Of InternVL.
)
# Model types whose arrays have the names of CLIP.
IN_CLIP_NAMES = (
    "clip_vision_model",
    "siglip_vision_model",
    "aimv2_vision_model",
)


def make_jsons(config: ViTConfig) -> dict[str, dict]:
    """Return the JSON files beside the weights, by name.

    Args:
        config: Configuration of the model.
    """
    return {
        "config.json": make_config_json(config),
        "preprocessor_config.json": _processor_json(config),
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


def _notes(config):
    """Yield notes on transformers' poolers and image processors that differ."""
    [kind] = make_config_json(config)["architectures"]
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
            f"transformers resizes its short side to {max(sizes)} pixels, so "
            "it shows less of most photos"
        )


def _refuse(config):
    return find_class_family(config).explain_refusal(config)


def _find_added_arrays(config):
    """Return the shapes of arrays that only DINOv2 and DINOv3 have, by name."""
    width, start = config.width, "vit.embeddings."
    masks = {
        "dinov2": (1, width),
        "dinov2_with_registers": (1, width),
        "dinov3_vit": (1, 1, width),
    }
    kind = find_class_family(config).model_type
    found = {start + "mask_token": masks[kind]} if kind in masks else {}
    if kind == "dinov3_vit" and not config.num_registers:
        found[start + "register_tokens"] = (1, 0, width)
    return found


def _prefix_rows(config):
    if config.num_registers:
        return 1  # In DINOv2, registers have no positions.
    return config.use_prefix_positions * config.num_prefix_tokens


def _written_by(config):
    """Return the family whose names the class of a model uses."""
    is_tower = find_class_family(config).model_type in IN_CLIP_NAMES
    return "huggingface_clip" if is_tower else "huggingface"


def _complete(config, hints, names):
    check_expected(config, hints.get("expected", {}))
    if config.num_classes:
        # Some files contain a pooler, which the classifier does not read.
        config = dataclasses.replace(config, representation_size=None)
    changes = {
        name: hints[name]
        for name in ("rotary_positions", "rotary_temperature")
        if name in hints
    }
    config = dataclasses.replace(config, **changes)
    if config.representation_size and not config.use_class_token:
        raise ValueError("its pooler reads the first patch")
    activation = hints["pooler_act"]
    if config.representation_size and activation != "tanh":
        raise ValueError(f"its pooler ends in {activation!r}, not in tanh.")
    return config, ()


def _find_undetermined(config, names):
    """Yield parts of a model, each with fields that only config.json states."""
    fields = ("layer_norm_epsilon", "activation", "pooling")
    if config.layer_scale_init is not None or config.num_registers:
        yield "LayerScale or register tokens", fields
    if config.use_distillation_token:
        yield "a distillation token", ("pooling",)
    if config.position_embedding == "none":
        yield "no position table", ("rotary_positions",)
    if not config.use_final_norm:
        yield "no norm after the last block", ("use_final_norm",)


def _prepare(shapes):
    """Mark the norm of the head for masked patches of BEiT."""
    is_beit = any(name.startswith("beit.") for name in shapes)
    return {
        f"lm_{name}" if is_beit and name.startswith("layernorm.") else name: (
            name,
            None,
        )
        for name in shapes
    }


LAYOUT = Layout(
    order=3,
    title="Hugging Face transformers",
    normalization=None,
    style={
        **TORCH,
        **LATER_TORCH,
        "scale": {"scale": ("", SAME)},
        "query_value_bias": {
            "query_bias": (".query.bias", SAME),
            "value_bias": (".value.bias", SAME),
        },
    },
    names={
        "patch_encoder": "vit.embeddings.patch_embeddings.projection",
        "class_token": "vit.embeddings.cls_token",
        "distillation_token": "vit.embeddings.distillation_token",
        "registers": "vit.embeddings.register_tokens",
        "position_embedding": "vit.embeddings.position_embeddings",
        RELATIVE: BLOCK_NAME + "attention.attention." + BIAS_TABLE,
        "relative_positions": "vit.encoder." + BIAS_TABLE,
        BLOCK + "attention_norm": BLOCK_NAME + "layernorm_before",
        BLOCK + "attention": BLOCK_NAME + "attention.attention",
        BLOCK + "attention/qkv": (
            BLOCK_NAME + "attention.attention.query",
            BLOCK_NAME + "attention.attention.key",
            BLOCK_NAME + "attention.attention.value",
        ),
        BLOCK + "attention/query_norm": BLOCK_NAME
        + "attention.attention.q_norm",
        BLOCK + "attention/key_norm": BLOCK_NAME + "attention.attention.k_norm",
        BLOCK + "attention/out": BLOCK_NAME + "attention.output.dense",
        BLOCK + "attention_scale": BLOCK_NAME + "lambda_1",
        BLOCK + "mlp_norm": BLOCK_NAME + "layernorm_after",
        BLOCK + "mlp/hidden": BLOCK_NAME + "intermediate.dense",
        BLOCK + "mlp/out": BLOCK_NAME + "output.dense",
        BLOCK + "mlp_scale": BLOCK_NAME + "lambda_2",
        "encoder_norm": "vit.layernorm",
        "pooling_norm": "vit.pooler.layernorm",
        "pre_logits": "vit.pooler.dense",
        "predictions": "classifier",
        "predictions/class_head": "cls_classifier",
        "predictions/teacher_head": "distillation_classifier",
    },
    recognise=(
        *(
            f"{prefix}embeddings.patch_embeddings.projection.weight"
            for prefix in ("", *(f"{name}." for name in MODELS))
        ),
        "embeddings.patch_embeddings.weight",
    ),
    variants=(
        NameVariant(
            r"vit\.encoder\.layer\.0\.intermediate\.gate\.",
            names={
                BLOCK + "mlp/hidden": (
                    BLOCK_NAME + "intermediate.gate",
                    BLOCK_NAME + "intermediate.dense",
                ),
            },
            used_by=lambda config: (
                config.use_gated_mlp and config.rotary_positions != "none"
            ),
        ),
    ),
    has_later_parts=True,
    position_resize="bicubic",
    layer_norm_epsilon=1e-12,
    wrappers=TORCH_WRAPPERS,
    # A model without a head has no prefix. Version 5 renamed the modules in
    # memory, so a raw state dict has other names than a saved file.
    aliases=(
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
    ),
    dialect_of=lambda config: Dialect(
        find_class_family(config).names_of(config)
    ),
    prepare=_prepare,
    ignore=(
        r"vit\.embeddings\.(mask_token|position_ids)$|decoder\.|lm_|neck\."
        r"|(decode_|auxiliary_)?head\.|fpn\d\.|.*\.relative_position_index$"
        r"|language_model\.|multi_modal_projector\."
    ),
    unread=lambda config: (
        r"vit\.pooler\.dense\." if config.num_classes else NOTHING
    ),
    optional_bias=("heads_in",),
    describe=describe_tower,
    read_hints=lambda json: {
        "pooler_act": json.get("pooler_act", "tanh"),
        **read_settings(json),
    },
    complete=_complete,
    undetermined=_find_undetermined,
    writers={"": folder_writer(make_jsons)},
    later_fields=lambda config: find_class_family(config).later_fields,
    later_values=TRANSFORMERS_VALUES,
    written_by=_written_by,
    prefix_rows=_prefix_rows,
    adds=_find_added_arrays,
    refuse=_refuse,
    notes=_notes,
    stated_fields=("activation", "layer_norm_epsilon"),
    class_entries=describe_classes,
)
