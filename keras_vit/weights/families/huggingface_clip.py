"""Hugging Face transformers: the image towers of CLIP, SigLIP and AIMv2."""

import dataclasses

from keras_vit.weights.huggingface.tower_settings import (
    describe_tower,
    read_settings,
)
from keras_vit.weights.huggingface.visible_parts import check_expected
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import (
    NOTHING,
    TORCH_WRAPPERS,
    Layout,
    NameVariant,
)
from keras_vit.weights.styles import (
    FLAT_CONV,
    LATER_TORCH,
    SAME,
    TORCH,
    VECTOR,
)

TOWER = "vision_model."
BLOCK_NAME = TOWER + "encoder.layers.{i}."
HEAD = TOWER + "head."
PATCH_EMBEDDING = "embeddings.patch_embedding"


def _find_undetermined(config, names):
    """Yield parts of a tower, each with fields that only config.json states."""
    fields = ("layer_norm_epsilon", "activation", "pooling")
    yield "the names of CLIP, SigLIP or AIMv2", fields
    if config.rotary_positions != "none":
        fields = ("rotary_positions", "rotary_temperature")
        yield "angles of the class token", fields
    if not config.use_final_norm:
        yield "no norm after the last block", ("use_final_norm",)


def _complete(config, hints, names):
    check_expected(config, hints.get("expected", {}))
    has_classifier = any(name.startswith("classifier.") for name in names)
    if has_classifier and not hints.get("architecture"):
        raise ValueError(
            "it has a classifier, whose pooling follows from the class: its "
            "config.json lacks `architectures`"
        )
    if config.pooling == "avg" and hints.get("use_final_norm") is False:
        # The norm is in the file, and the classifier does not read it.
        config = dataclasses.replace(config, use_final_norm=False)
    return config, ()


def _unread(config):
    patterns = []
    if not config.use_final_norm:
        patterns.append(r"vision_model\.post_layernorm\.")
    if config.pooling not in ("map", "probe"):
        patterns.append(r"vision_model\.head\.")
    return "|".join(patterns) or NOTHING


def _prepare(shapes):
    """Take the projections of the pooling apart, and mark flat patches."""
    renamed = {}
    for name, shape in shapes.items():
        if "head.attention.in_proj_" in name and shape and shape[0] % 3 == 0:
            width = shape[0] // 3
            ending = "." + name.rsplit("_", 1)[1]
            start = name.partition("in_proj_")[0]
            for index, part in enumerate(("query", "key", "value")):
                piece = (slice(index * width, (index + 1) * width),)
                renamed[start + part + ending] = (name, piece)
        elif _is_flat(name, shapes):
            flat = PATCH_EMBEDDING + ".flat"
            renamed[name.replace(PATCH_EMBEDDING, flat)] = (name, None)
        else:
            renamed[name] = (name, None)
    return renamed


def _is_flat(name, shapes):
    """Return whether an array belongs to a projection of flat patches."""
    layer, _, ending = name.rpartition(".")
    if not layer.endswith(PATCH_EMBEDDING) or ending not in ("weight", "bias"):
        return False
    return len(shapes.get(f"{layer}.weight", ())) == 2


LAYOUT = Layout(
    order=3,
    title="Hugging Face transformers (CLIP, SigLIP, AIMv2)",
    normalization=None,
    style={
        **TORCH,
        **LATER_TORCH,
        "token": {"token": ("", VECTOR)},
        "embedding": {"embedding": (".weight", SAME)},
        "class_angles": {"class_angles": ("", SAME)},
    },
    names={
        "patch_encoder": TOWER + PATCH_EMBEDDING,
        "patch_norm": TOWER + "embeddings.rms_norm",
        "class_token": TOWER + "embeddings.class_embedding",
        "position_embedding": TOWER + "embeddings.position_embedding",
        "embedding_norm": TOWER + "pre_layrnorm",
        "rotary_positions": TOWER + "class_pos_emb",
        BLOCK + "attention_norm": BLOCK_NAME + "layer_norm1",
        BLOCK + "attention/qkv": (
            BLOCK_NAME + "self_attn.q_proj",
            BLOCK_NAME + "self_attn.k_proj",
            BLOCK_NAME + "self_attn.v_proj",
        ),
        BLOCK + "attention/out": BLOCK_NAME + "self_attn.out_proj",
        BLOCK + "mlp_norm": BLOCK_NAME + "layer_norm2",
        BLOCK + "mlp/hidden": BLOCK_NAME + "mlp.fc1",
        BLOCK + "mlp/out": BLOCK_NAME + "mlp.fc2",
        "encoder_norm": TOWER + "post_layernorm",
        "pooling": HEAD + "probe",
        "pooling/query": HEAD + "attention.query",
        "pooling/key_value": (HEAD + "attention.key", HEAD + "attention.value"),
        "pooling/out": HEAD + "attention.out_proj",
        "pooling/norm": HEAD + "layernorm",
        "pooling/mlp/hidden": HEAD + "mlp.fc1",
        "pooling/mlp/out": HEAD + "mlp.fc2",
        "predictions": "classifier",
    },
    recognise=tuple(
        f"{prefix}embeddings.{name}.weight"
        for prefix in ("", TOWER)
        for name in ("patch_embedding", "patch_embed")
    ),
    variants=(
        NameVariant(
            r"vision_model\.embeddings\.patch_embedding\.flat\.",
            names={"patch_encoder": TOWER + PATCH_EMBEDDING + ".flat"},
            style=FLAT_CONV,
        ),
        NameVariant(
            r"vision_model\.encoder\.layers\.0\.mlp\.gate\.",
            names={
                BLOCK + "mlp/hidden": (
                    BLOCK_NAME + "mlp.gate",
                    BLOCK_NAME + "mlp.fc1",
                ),
            },
            used_by=lambda config: config.use_gated_mlp,
        ),
    ),
    has_later_parts=True,
    position_resize="bicubic",
    wrappers=TORCH_WRAPPERS,
    aliases=(
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
    ),
    prepare=_prepare,
    ignore=r"text_|logit_(scale|bias)$|.*\.(position_ids|inv_freq)$",
    unread=_unread,
    optional_bias=("heads_in", "predictions"),
    describe=describe_tower,
    read_hints=read_settings,
    complete=_complete,
    joins={
        f"{HEAD}attention.in_proj_{ending}": tuple(
            f"{HEAD}attention.{part}.{ending}"
            for part in ("query", "key", "value")
        )
        for ending in ("weight", "bias")
    },
    drops=lambda config: (
        ("predictions/bias",) if config.use_embedding_norm else ()
    ),
    undetermined=_find_undetermined,
)
