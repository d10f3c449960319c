"""OpenCLIP and OpenAI's CLIP: the towers of images and texts, read only."""

from keras_vit.arguments import is_whole
from keras_vit.models.text import TextConfig
from keras_vit.weights.families.family import (
    NOTHING,
    SAME,
    TORCH,
    TORCH_WRAPPERS,
    TRANSPOSED,
    VECTOR,
    Family,
    TextFamily,
    Variant,
)
from keras_vit.weights.families.inference import BLOCK

RESBLOCK = "visual.transformer.resblocks.{i}."
POOLINGS = {"tok": "token", "avg": "avg"}  # Of `vision_cfg`.
# Keys of `vision_cfg` that are read, that arrays show, or that have no effect
# without another one; others are refused unless they ask for nothing.
IMAGE_KEYS = frozenset(
    "layers width head_width mlp_ratio patch_size image_size ls_init_value "
    "patch_dropout no_ln_pre pos_embed_type final_ln_after_pool pool_type "
    "output_tokens act_kwargs norm_kwargs n_queries attn_pooler_queries "
    "attn_pooler_heads timm_model_pretrained timm_pool timm_proj "
    "timm_proj_bias timm_drop timm_drop_path".split()
)
GELUS = {"tanh": "tanh", "none": "exact"}  # `approximate` of PyTorch's.
# Reads a value of a key as fields of ViTConfig; None if it is not read.
KEYWORDS = {
    "act_kwargs": lambda row: (
        {"activation": GELUS[row["approximate"]]}
        if list(row) == ["approximate"] and row["approximate"] in GELUS
        else None
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


def _read_keywords(tower):
    """Return fields that KEYWORDS state, and the keys that are not read."""
    fields, refused = {}, []
    for key, read in KEYWORDS.items():
        if row := tower.get(key):
            found = read(row) if isinstance(row, dict) else None
            refused += [key] if found is None else []
            fields |= found or {}
    return fields, refused


def _unknown_keys(tower, known):
    return [
        key
        for key, value in tower.items()
        if key not in known and value not in NO_EFFECT
    ]


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
        r"|(positional_embedding|text_projection(\.(weight|bias))?|logit_scale"
        r"|logit_bias|input_resolution|context_length|vocab_size|attn_mask)$"
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
        fields, refused = _read_keywords(tower)
        refused += _unknown_keys(tower, IMAGE_KEYS)
        head_width = tower.get("head_width", 64)
        if not is_whole(head_width) or head_width < 1:
            refused.append("head_width")
        pooling = tower.get("pool_type", "tok")
        if pooling not in POOLINGS:
            refused.append("pool_type")
        is_quick = json["model_cfg"].get("quick_gelu")
        hints = {
            "activation": "quick" if is_quick else "exact",
            "pooling": POOLINGS.get(pooling),
            "stated_classes": json["model_cfg"].get("embed_dim"),
            **fields,
        }
        if refused:
            parts = ", ".join(f"{key}={tower[key]!r}" for key in refused)
            raise ValueError(f"its configuration has {parts}")
        width, size = tower.get("width"), tower.get("image_size")
        if "layers" in tower:
            hints["depth"] = tower["layers"]
        if isinstance(width, int):
            hints |= {"width": width, "num_heads": width // head_width}
        if isinstance(size, int):
            hints["image_sizes"] = [(size, size)]
        return json, hints

    def complete(self, config, hints, shapes):
        if hints.get("width", config.width) != config.width:
            raise ValueError(
                f"its configuration states width={hints['width']}, but its "
                f"arrays are of width {config.width}"
            )
        return super().complete(config, hints, shapes)

    def undetermined(self, config, names):
        return [("the names of CLIP", ("activation",))]


# The poolings of `text_cfg`, by their names there.
TEXT_POOLINGS = {
    "argmax": "largest",
    "eos": "end",
    "first": "first",
    "last": "last",
}
# Its keys with an effect on the vectors, or none, and the values of others that
# have none either.
TEXT_KEYS = frozenset(
    "context_length vocab_size width heads layers mlp_ratio ls_init_value "
    "pad_id eos_id no_causal_mask pool_type proj_type proj_bias act_kwargs "
    "norm_kwargs output_tokens final_ln_after_pool hf_tokenizer_name "
    "tokenizer_mode tokenizer_kwargs hf_model_pretrained hf_proj_type "
    "hf_pooler_type".split()
)
NO_EFFECT = (None, False, "", "default")


class OpenClipText(TextFamily):
    """The text towers of OpenCLIP, beside an image tower of any kind.

    Source: `CLIPTextCfg` and `TextTransformer` of open_clip 3.3.
    """

    title = "OpenCLIP (mlfoundations/open_clip)"
    style = {
        **OpenClip.style,
        "embeddings": (".weight", SAME),
        "projection/kernel": ("", SAME),
        "projection/bias": (".bias", SAME),
    }
    layers = {
        "token_embedding": "token_embedding",
        "positions": "positional_embedding",
        **{
            path: name.removeprefix("visual.")
            for path, name in OpenClip.layers.items()
            if path.startswith(BLOCK)
        },
        "final_norm": "ln_final",
        "projection": "text_projection",
    }
    recognise = ("token_embedding.weight",)
    # Towers of transformers, such as RoBERTa, and the text of MaMMUT and CoCa.
    unless = r"(text\.)?(transformer\.(embeddings|encoder)\.|cls_emb$)"
    variants = (
        Variant(
            r"text_projection\.weight$",
            style={"projection/kernel": (".weight", TRANSPOSED)},
        ),
    )
    wrappers = (*TORCH_WRAPPERS, "text.")
    ignore = (
        r"(\w+\.)*(visual\.|logit_(scale|bias)$)"
        r"|(input_resolution|context_length|vocab_size|attn_mask)$"
    )

    def read(self, json, shapes, known=None):
        model = json.get("model_cfg")
        tower = model.get("text_cfg") if isinstance(model, dict) else None
        if not isinstance(tower, dict):
            raise ValueError(
                "a text tower needs the open_clip_config.json beside it, with "
                "`text_cfg`"
            )
        changes, refused = _read_keywords(tower)
        refused += _unknown_keys(tower, TEXT_KEYS)
        if tower.get("tokenizer_mode"):
            refused.append("tokenizer_mode")
        pooling = tower.get("pool_type", "argmax")
        if pooling not in TEXT_POOLINGS:
            refused.append("pool_type")
        if refused:
            parts = ", ".join(f"{key}={tower[key]!r}" for key in refused)
            raise ValueError(f"its text tower has {parts}, which is not read")
        width, is_quick = tower.get("width", 512), model.get("quick_gelu")
        has_projection = tower.get("proj_type", "linear") != "none"
        fields = {
            "vocabulary_size": tower.get("vocab_size", 49_408),
            "context_length": tower.get("context_length", 77),
            "width": width,
            "depth": tower.get("layers", 12),
            "mlp_dim": int(width * tower.get("mlp_ratio", 4.0)),
            "num_heads": tower.get("heads", 8),
            "output_size": model.get("embed_dim") if has_projection else None,
            "use_output_bias": bool(tower.get("proj_bias")),
            "use_causal_mask": not tower.get("no_causal_mask"),
            "pooling": TEXT_POOLINGS[pooling],
            "end_token": tower.get("eos_id", 2) if pooling == "eos" else None,
            "activation": "quick" if is_quick else "exact",
            "layer_scale_init": tower.get("ls_init_value"),
        }
        return TextConfig(**{**fields, **changes})
