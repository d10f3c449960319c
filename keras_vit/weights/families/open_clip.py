"""OpenCLIP and OpenAI's CLIP: the image tower."""

from keras_vit.weights.containers.descriptions import image_tower_of
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import (
    NOTHING,
    TORCH_WRAPPERS,
    Layout,
    NameVariant,
)
from keras_vit.weights.styles import (
    LATER_TORCH,
    SAME,
    TORCH,
    TRANSPOSED,
    VECTOR,
)

# Parts of image towers that are not read.
REFUSED_KEYS = ("timm_model_name", "attentional_pool", "input_patchnorm")
# Reads a value of a key as fields of ViTConfig; None if it is not read.
KEYWORDS = {
    "act_kwargs": lambda row: (
        {"activation": "tanh"} if row == {"approximate": "tanh"} else None
    ),
    "norm_kwargs": lambda row: (
        {"layer_norm_epsilon": row["eps"]} if list(row) == ["eps"] else None
    ),
}
RESBLOCK = "visual.transformer.resblocks.{i}."


def _read_hints(json):
    """Return the fields of ViTConfig that open_clip_config.json states."""
    tower = image_tower_of(json)
    if not tower:
        return {}
    refused = [key for key in REFUSED_KEYS if tower.get(key)]
    averages = tower.get("pool_type") == "avg"
    is_quick = json["model_cfg"].get("quick_gelu")
    hints = {
        "activation": "quick" if is_quick else "exact",
        "pooling": "avg" if averages else "token",
    }
    for key, read in KEYWORDS.items():
        if row := tower.get(key):
            fields = read(row) if isinstance(row, dict) else None
            refused += [key] if fields is None else []
            hints |= fields or {}
    if refused:
        parts = ", ".join(f"{key}={tower[key]!r}" for key in refused)
        raise ValueError(f"its configuration has {parts}")
    hints["stated_classes"] = json["model_cfg"].get("embed_dim")
    width, size = tower.get("width"), tower.get("image_size")
    if "layers" in tower:
        hints["depth"] = tower["layers"]
    if isinstance(width, int):
        hints["num_heads"] = width // int(tower.get("head_width", 64))
    if isinstance(size, int):
        hints["image_sizes"] = [(size, size)]
    return hints


def _has_norm_after_pooling(json):
    """Return whether `ln_post` follows the average over the patches."""
    tower = image_tower_of(json)
    is_after = tower.get("final_ln_after_pool")
    return bool(is_after and tower.get("pool_type") == "avg")


def _prepare(shapes):
    """Name the arrays of an image tower alone as in the whole model."""
    is_alone = "ln_post.weight" in shapes
    return {f"visual.{n}" if is_alone else n: (n, None) for n in shapes}


LAYOUT = Layout(
    order=3,
    title="OpenCLIP (mlfoundations/open_clip)",
    normalization="clip",
    style={
        **TORCH,
        **LATER_TORCH,
        "heads_in": {
            "kernel": ("_weight", TRANSPOSED),
            "bias": ("_bias", SAME),
        },
        "token": {"token": ("", VECTOR)},
        "embedding": {"embedding": ("", SAME)},
        "predictions": {"kernel": ("", SAME), "bias": (".bias", SAME)},
    },
    names={
        "patch_encoder": "visual.conv1",
        "class_token": "visual.class_embedding",
        "position_embedding": "visual.positional_embedding",
        "embedding_norm": "visual.ln_pre",
        BLOCK + "attention_norm": RESBLOCK + "ln_1",
        BLOCK + "attention/qkv": RESBLOCK + "attn.in_proj",
        BLOCK + "attention/out": RESBLOCK + "attn.out_proj",
        BLOCK + "attention_scale": RESBLOCK + "ls_1",
        BLOCK + "mlp_scale": RESBLOCK + "ls_2",
        BLOCK + "mlp_norm": RESBLOCK + "ln_2",
        BLOCK + "mlp/hidden": RESBLOCK + "mlp.c_fc",
        BLOCK + "mlp/out": RESBLOCK + "mlp.c_proj",
        "encoder_norm": "visual.ln_post",
        "predictions": "visual.proj",
    },
    # The files of Perception Encoder have the other names, but their rotary
    # positions show in none. They have this norm only with a pooling that is
    # refused.
    # The image tower alone has its names without "visual.".
    recognise=("visual.ln_post.weight", "ln_post.weight"),
    prepare=_prepare,
    # CLIPA.
    variants=(
        NameVariant(
            NOTHING,
            names={"encoder_norm": None, "pooling_norm": "visual.ln_post"},
            stated_by=_has_norm_after_pooling,
        ),
    ),
    has_later_parts=True,
    layer_norm_epsilon=1e-5,
    wrappers=TORCH_WRAPPERS,
    ignore=(
        r"(transformer|token_embedding|ln_final|text)\."
        r"|(positional_embedding|text_projection|logit_scale|logit_bias"
        r"|input_resolution|context_length|vocab_size|attn_mask)$"
    ),
    optional_bias=("predictions",),
    position_resize="bicubic_antialias",
    read_hints=_read_hints,
    undetermined=lambda config, names: [("the names of CLIP", ("activation",))],
)
