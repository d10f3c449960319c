"""OpenCLIP and OpenAI's CLIP: the image tower, read only."""

from keras_vit.weights.families.family import (
    NOTHING,
    SAME,
    TORCH,
    TORCH_WRAPPERS,
    TRANSPOSED,
    VECTOR,
    Family,
    Variant,
)
from keras_vit.weights.families.inference import BLOCK

RESBLOCK = "visual.transformer.resblocks.{i}."
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


def image_tower_of(json: dict) -> dict:
    """Return `vision_cfg` of an open_clip_config.json, {} without it."""
    model = json.get("model_cfg")
    tower = model.get("vision_cfg") if isinstance(model, dict) else None
    return tower if isinstance(tower, dict) else {}


def _has_norm_after_pooling(json):
    """Return whether `ln_post` follows the average over the patches."""
    tower = image_tower_of(json)
    is_after = tower.get("final_ln_after_pool")
    return bool(is_after and tower.get("pool_type") == "avg")


class OpenClip(Family):
    """The image towers of OpenCLIP, in the whole model or alone."""

    title = "OpenCLIP (mlfoundations/open_clip)"
    style = {
        **TORCH,
        "qkv/kernel": ("_weight", TRANSPOSED),
        "qkv/bias": ("_bias", SAME),
        "token": ("", VECTOR),
        "embedding": ("", SAME),
        "predictions/kernel": ("", SAME),
    }
    layers = {
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
    }
    # The files of Perception Encoder have the other names, but their rotary
    # positions show in none. They have this norm only with a pooling that is
    # refused. The image tower alone has its names without "visual.".
    recognise = ("visual.ln_post.weight", "ln_post.weight")
    # CLIPA.
    variants = (
        Variant(
            NOTHING,
            {"encoder_norm": None, "pooling_norm": "visual.ln_post"},
            stated_by=_has_norm_after_pooling,
        ),
    )
    wrappers = TORCH_WRAPPERS
    ignore = (
        r"(transformer|token_embedding|ln_final|text)\."
        r"|(positional_embedding|text_projection|logit_scale|logit_bias"
        r"|input_resolution|context_length|vocab_size|attn_mask)$"
    )
    optional_bias = ("predictions",)
    normalization = "clip"
    layer_norm_epsilon = 1e-5
    position_resize = "bicubic_antialias"
    has_later_parts = True

    def prepare(self, shapes, json):
        """Name the arrays of an image tower alone as in the whole model."""
        is_alone = "ln_post.weight" in shapes
        return {f"visual.{n}" if is_alone else n: (n, None) for n in shapes}

    def read_hints(self, json):
        tower = image_tower_of(json)
        if not tower:
            return json, {}
        refused = [key for key in REFUSED_KEYS if tower.get(key)]
        averages = tower.get("pool_type") == "avg"
        is_quick = json["model_cfg"].get("quick_gelu")
        hints = {
            "activation": "quick" if is_quick else "exact",
            "pooling": "avg" if averages else "token",
            "stated_classes": json["model_cfg"].get("embed_dim"),
        }
        for key, read in KEYWORDS.items():
            if row := tower.get(key):
                fields = read(row) if isinstance(row, dict) else None
                refused += [key] if fields is None else []
                hints |= fields or {}
        if refused:
            parts = ", ".join(f"{key}={tower[key]!r}" for key in refused)
            raise ValueError(f"its configuration has {parts}")
        width, size = tower.get("width"), tower.get("image_size")
        if "layers" in tower:
            hints["depth"] = tower["layers"]
        if isinstance(width, int):
            hints["num_heads"] = width // int(tower.get("head_width", 64))
        if isinstance(size, int):
            hints["image_sizes"] = [(size, size)]
        return json, hints

    def undetermined(self, config, names):
        return [("the names of CLIP", ("activation",))]
