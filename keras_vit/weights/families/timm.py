"""timm: huggingface/pytorch-image-models."""

import dataclasses
import math
import re

from keras_vit.models.config import ViTConfig
from keras_vit.weights.layer_shapes import BLOCK, UNIT
from keras_vit.weights.layouts import Layout, Spelling
from keras_vit.weights.styles import TORCH
from keras_vit.weights.writers import (
    folder_writer,
    npz_writer,
    write_safetensors_file,
)

STAGES = "patch_embed.backbone.stages.{s}.blocks.{u}."


def make_jsons(config: ViTConfig) -> dict[str, dict]:
    """Return the JSON file beside the weights, by name.

    Args:
        config: Configuration of the model.

    Raises:
        ValueError: If the model is a hybrid.
    """
    if config.stem_stages is not None:
        raise ValueError(
            "timm has no configuration file for hybrids; write the model to a "
            "`.safetensors` file"
        )
    pool = {"none": ""}.get(config.pooling, config.pooling)
    model = {
        # The name of any plain ViT of timm; `model_args` define the model.
        "architecture": "vit_base_patch16_224",
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": pool,
        "model_args": _arguments(config, pool),
        "pretrained_cfg": {
            "num_classes": config.num_classes,
            "input_size": [config.channels, *config.image_size],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    return {"config.json": model}


def _arguments(config, pool):
    """Return the arguments of timm's VisionTransformer."""
    return {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": _mlp_ratio(config.mlp_dim, config.width),
        "class_token": config.use_class_token,
        "global_pool": pool,
        "fc_norm": config.use_pooling_norm,
        "act_layer": "gelu" if config.activation == "exact" else "gelu_tanh",
    }


def _mlp_ratio(mlp_dim, width):
    """Return a ratio for which timm's int(width * ratio) is `mlp_dim`."""
    ratio = mlp_dim / width
    exact = int(width * ratio) == mlp_dim
    return ratio if exact else math.nextafter(ratio, math.inf)


def _refuse(config):
    if config.representation_size:
        return "it has no pre-logits layer"
    if config.pooling == "map" and config.use_class_token:
        return "its attention pooling skips the class token"
    return None


def _read_hints(json):
    architecture = json.get("architecture")
    if not isinstance(architecture, str):
        return {}
    if "_rpn_" in architecture:
        # The names are those of a plain ViT.
        raise ValueError(f"{architecture} normalises after the attention.")
    hints = {"is_published": True}
    for pattern, told in ARCHITECTURES:
        if re.match(pattern, architecture):
            hints |= told
    return hints


def _complete(config, hints):
    if config.pooling == "map" and config.use_class_token:
        raise ValueError(
            "timm's attention pooling skips the class token, but that of this "
            "package reads it."
        )
    sizes = (config.width, config.depth, config.patch_size)
    image_sizes = (None, config.image_size)
    names = [TANH_SIZES.get((*sizes, size)) for size in image_sizes]
    name = names[0] or names[1]
    told = "activation" in hints or "is_published" in hints
    if told or config.use_class_token or not name:
        return config, ()
    note = (
        "No configuration beside the file states which GELU its model "
        f"computes. It has the sizes of timm's {name}, which computes the tanh "
        "GELU, unlike most models of timm: `activation='tanh'` is assumed. "
        "Pass `activation='tanh'` to confirm it, or `activation='exact'`."
    )
    return dataclasses.replace(config, activation="tanh"), (note,)


LAYOUT = Layout(
    order=2,
    title="timm (huggingface/pytorch-image-models)",
    style=TORCH,
    names={
        "patch_encoder": "patch_embed.proj",
        "class_token": "cls_token",
        "position_embedding": "pos_embed",
        BLOCK + "attention_norm": "blocks.{i}.norm1",
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
    recognise=("patch_embed.proj.weight",),
    stem_epsilons="timm",
    wrappers=("module.", "model.", "_orig_mod.", "state_dict."),
    # A stem without stages is not nested.
    aliases=(
        (
            r"^patch_embed\.backbone\.(conv|norm)\.",
            r"patch_embed.backbone.stem.\1.",
        ),
    ),
    spellings={"root": Spelling(((r"\.backbone\.stem\.", ".backbone."),))},
    spelling_of=lambda config: "root" if config.stem_stages == () else "",
    ignore=r"(mask_token|optimizer|epoch)$",
    optional_bias=("heads_in",),
    slots=((1, 0), (0,)),
    read_hints=_read_hints,
    complete=_complete,
    writers={
        ".safetensors": write_safetensors_file,
        ".npz": npz_writer(),
        "": folder_writer(make_jsons),
    },
    refuse=_refuse,
    remedies={"activation": "Pass act_layer='gelu_tanh' there."},
)

# Pattern of an architecture, and its settings that neither the file nor
# config.json states. Most models of timm compute the exact GELU.
ARCHITECTURES = (
    (r"vit_base_patch32_siglip_", {"activation": "tanh"}),
    (r"vit_large_patch16_siglip_(gap_)?512", {"activation": "tanh"}),
    (r"vit_so400m_patch16_siglip_", {"activation": "tanh"}),
    (r"vit_giantopt_patch16_siglip_", {"activation": "tanh"}),
    (r"vit_base_patch16_gap_224$", {"num_heads": 16}),
)
# The same models by their sizes: width, depth, patch and image (None for any).
# They have no class token, and no other published model has these sizes.
TANH_SIZES = {
    (768, 12, 32, None): "vit_base_patch32_siglip",
    (1024, 24, 16, (512, 512)): "vit_large_patch16_siglip_512",
    (1152, 27, 16, None): "vit_so400m_patch16_siglip",
    (1536, 40, 16, None): "vit_giantopt_patch16_siglip",
}
