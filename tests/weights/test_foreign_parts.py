"""Names that no VisionTransformer has."""

import re

import numpy as np
import pytest

from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.inference import FOREIGN_PARTS, foreign_parts
from keras_vit.weights.find import recognise

FOREIGN = {
    "embeddings.distillation_token": "a distillation token",
    "reg_token": "register tokens",
    "blocks.0.ls1.gamma": "LayerScale",
    "blocks.0.lambda_2": "LayerScale",
    "blocks.0.attn.q_norm.weight": "a norm of queries and keys",
    "norm_pre.weight": "a norm before the first block",
    "blocks.0.attn.rel_pos.table": "relative positions",
    "blocks.0.attn.rel_pos_h": "attention in windows",
    "rope.freqs": "rotary positions",
    "blocks.0.mlp.w12.weight": "a gated MLP",
    "query.lora_A.weight": "LoRA adapters alone, without the model",
    "trunk_head.mlp.fc1.weight": "a projection with an MLP",
    "decoder.decoder_embed.weight": "a decoder of masked patches",
    "txt/head": "a text tower",
    "blocks.0.attn.lambda_q1": "differential attention",
    "neck.0.weight": "a neck of convolutions",
    "blocks.0.attns.0.ls.gamma": "parallel blocks",
    "patch_embed.backbone.conv1.0.weight": "a convolutional stem",
}
FORMATS = {
    "encoder.layers.encoder_layer_0.ln_1.weight": "torchvision",
    "backbone.layers.0.ln1.weight": "MMPretrain",
    "layers.0.ffn.layers.0.0.weight": "MMPretrain",
    "vit.to_patch_embedding.1.weight": "vit-pytorch",
    "layers.0.blocks.0.attn.relative_position_bias_table": "Swin",
    "backbone.layer1.0.conv1.weight": "ResNet",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_name_names_its_part(name):
    assert foreign_parts(["head", name]) == [f"{FOREIGN[name]} ({name})"]


def test_no_name_of_ours_is_foreign():
    for family, layout in LAYOUTS.items():
        for names in layout.layers.values():
            if layout.has_later_parts:
                continue
            for name in (names,) if isinstance(names, str) else names:
                for pattern, what in FOREIGN_PARTS:
                    assert not re.search(pattern, name), (family, what)


@pytest.mark.parametrize("name", FORMATS)
def test_a_network_of_another_library_is_named(name):
    with pytest.raises(ValueError, match=FORMATS[name]):
        recognise("m.npz", [name, "patch_embed.projection.weight"])


def test_the_stem_of_a_hybrid_is_no_resnet():
    name = "patch_embed.backbone.layer1.0.conv1.weight"
    names = [name, "patch_embed.proj.weight"]
    assert recognise("m.npz", names)[:2] == ("timm", "")


def test_an_unknown_family_names_what_it_shows(load):
    arrays = dict.fromkeys(("reg_token", "conv1/kernel"), np.zeros(3, "f4"))
    words = "m.npz is not a ViT.*conv1/kernel.* They show register tokens"
    with pytest.raises(ValueError, match=words):
        load(arrays)
