"""Names that no VisionTransformer has."""

import re

import numpy as np
import pytest

from keras_vit import from_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.inference import FOREIGN_PARTS, foreign_parts
from keras_vit.weights.find import recognise

FOREIGN = {
    "dist_token": "a distillation token",
    "reg_token": "register tokens",
    "blocks.0.ls1.gamma": "LayerScale",
    "blocks.0.attn.q_norm.weight": "a norm of queries and keys",
    "norm_pre.weight": "a norm before the first block",
    "blocks.0.attn.rel_pos.table": "relative positions",
    "rope.freqs": "rotary positions",
    "head_dist.weight": "a distillation token",
    "embeddings.distillation_token": "a distillation token",
    "embeddings.register_token": "register tokens",
    "layer.0.layer_scale1.lambda1": "LayerScale",
    "blocks.0.lambda_2": "LayerScale",
    "blocks.0.gamma_1": "LayerScale",
    "attention/query_norm/scale": "a norm of queries and keys",
    "attention/key_norm/scale": "a norm of queries and keys",
    "ln_pre.weight": "a norm before the first block",
    "layer.0.relative_position_bias": "relative positions",
    "freqs": "rotary positions",
    "blocks.0.mlp.w12.weight": "a gated MLP",
    "blocks.0.mlp.fc1_g.weight": "a gated MLP",
    "layer.0.mlp.swiglu.weight": "a gated MLP",
    "layer.0.mlp.weights_in.weight": "a gated MLP",
    "query.lora_A.weight": "LoRA adapters alone, without the model",
    "trunk_head.mlp.fc1.weight": "a projection with an MLP",
    "decoder.decoder_embed.weight": "a decoder of masked patches",
    "txt/head": "a text tower",
    "blocks.0.attn.lambda_q1": "differential attention",
    "blocks.0.attn.sub_norm.weight": "differential attention",
    "blocks.0.attn.rel_pos_h": "attention in windows",
    "neck.0.weight": "a neck of convolutions",
    "blocks.0.in_proj.weight": "parallel blocks",
    "blocks.0.attn_out_proj.weight": "parallel blocks",
    "blocks.0.attns.0.ls.gamma": "parallel blocks",
    "patch_embed.backbone.0.conv.weight": "a convolutional stem",
    "patch_embed.backbone.conv1.0.weight": "a convolutional stem",
    "text_model.embeddings": "a text tower",
}


FORMATS = {
    "encoder.layers.encoder_layer_0.ln_1.weight": "torchvision",
    "backbone.layers.0.ln1.weight": "MMPretrain",
    "layers.0.ffn.layers.0.0.weight": "MMPretrain",
    "vit.to_patch_embedding.1.weight": "vit-pytorch",
    "layers.0.blocks.0.attn.relative_position_bias_table": "Swin",
    "backbone.layer1.0.conv1.weight": "ResNet",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_network_of_another_library_is_named(name, tmp_path):
    path = tmp_path / "m.npz"
    known = dict.fromkeys([name, "patch_embed.projection.weight"])
    np.savez(path, **{key: np.zeros((2, 2), "f4") for key in known})
    with pytest.raises(ValueError, match=FORMATS[name]):
        from_checkpoint(path)


def test_the_stem_of_a_hybrid_is_no_resnet():
    name = "patch_embed.backbone.layer1.0.conv1.weight"
    names = [name, "patch_embed.proj.weight"]
    assert recognise("m.npz", names) == ("timm", "")


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
