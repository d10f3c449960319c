"""What is inferred: from JSON, from names and shapes, and from arguments."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest

from keras_vit import VARIANTS, from_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.inference import Known, find_hints
from keras_vit.weights.find import (
    FOREIGN_PARTS,
    find,
    foreign_parts,
    recognise,
)
from keras_vit.weights.read import read_preprocessing
from tests.weights import forms
from tests.weights.cases import TIMM, TOKEN, checkpoint_of, path_of, stored_in

HINTS = {
    "hugging_face": (
        {"num_attention_heads": 12, "image_size": 224, "hidden_act": "gelu"},
        {"num_heads": 12, "image_sizes": [(224, 224)], "activation": "exact"},
    ),
    "hugging_face_tanh": (
        {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-12},
        {"activation": "tanh", "layer_norm_epsilon": 1e-12},
    ),
    "timm": (
        {
            "global_pool": "avg",
            "pretrained_cfg": {"input_size": [3, 224, 160], "classifier": "x"},
            "model_args": {"num_heads": 6, "img_size": [32, 48]},
        },
        {
            "pooling": "avg",
            "num_heads": 6,
            "image_sizes": [(224, 160), (32, 48)],
        },
    ),
    "keras_hub": (
        {"config": {"image_shape": [32, 48, 3], "num_heads": 3}},
        {"image_sizes": [(32, 48)], "num_heads": 3},
    ),
    "keras": (
        {"layers": [{"config": {"batch_shape": [None, 32, 48, 3]}}]},
        {"image_sizes": [(32, 48)]},
    ),
    "outer_first": ({"a": {"num_heads": 3}, "num_heads": 4}, {"num_heads": 4}),
    "no_pooling": ({"classifier": "head.fc"}, {}),
    "too_many_heads": ({"num_heads": 2**20}, {}),
    "no_heads": ({"num_heads": 0}, {}),
    "too_large_an_epsilon": ({"layer_norm_eps": 1.0}, {}),
    "nonsense": (
        {
            "num_heads": True,
            "image_size": "224",
            "hidden_act": ["gelu"],
            "layer_norm_eps": "1e-6",
            "pool": 3,
            "img_size": [1, 2, 3, 4, 5],
            "image": [-1, 4],
        },
        {},
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_what_configurations_of_others_say(name):
    config, expected = HINTS[name]
    assert find_hints(config) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"model_args": {"act_layer": "mish"}},
        # The function itself, not the GELU with it.
        {"hidden_act": "tanh"},
        {"global_pool": "avgmax"},
        {"global_pool": "avg", "model_args": {"pool_include_prefix": True}},
    ],
    ids=str,
)
def test_a_configuration_of_another_model_is_refused(config, alone):
    path = alone(TIMM)
    path.with_suffix(".json").write_text(json.dumps(config))
    with pytest.raises(ValueError) as error:
        from_checkpoint(path, num_heads=3)
    assert str(path) in str(error.value)
    assert "its configuration has" in str(error.value)


def test_an_architecture_that_is_no_name(alone):
    path = alone(TIMM)
    path.with_suffix(".json").write_text('{"architecture": 3}')
    rule = "must name an `architecture`, such as '.*', and has architecture=3"
    with pytest.raises(ValueError, match=rule):
        from_checkpoint(path, num_heads=3)


@pytest.mark.parametrize(
    "name, config",
    [
        (TIMM, {"model_args": {"depth": 3}}),
        ("hf_vit", {"num_hidden_layers": 3}),
    ],
)
def test_blocks_that_are_missing_are_an_error(name, config, tmp_path):
    if name == "hf_vit":
        path = shutil.copytree(path_of(name), tmp_path / name)
        beside = path / "config.json"
        config = {**json.loads(beside.read_text()), **config}
    else:
        path = pathlib.Path(shutil.copy(path_of(name), tmp_path))
        beside = path.with_suffix(".json")
    beside.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="of 3 blocks, but it has 2"):
        from_checkpoint(path, num_heads=3)


# The field of ViTConfig, and what values of a key mean.
VALUES = {
    "hidden_act": (
        "activation",
        {
            "gelu": "exact",
            "quick_gelu": "quick",
            "gelu_new": "tanh",
            "gelu_fast": "tanh",
            "gelu_pytorch_tanh": "tanh",
            "relu": "relu",
            "swish": "silu",
        },
    ),
    "act_layer": ("activation", {"gelu_tanh": "tanh", "elu": "elu"}),
    "gelu": ("activation", {"erf": "exact", "silu": "silu", "tanh": "tanh"}),
    "pool": ("pooling", {"tok": "token", "gap": "avg", "map": "map"}),
    "global_pool": ("pooling", {"avg": "avg", "max": "max", "": "none"}),
    "classifier": ("pooling", {"token": "token", "unpooled": "none"}),
    "posemb": (
        "position_embedding",
        {"learn": "learned", "sincos2d": "sincos_2d"},
    ),
}


@pytest.mark.parametrize("key", VALUES)
def test_every_value_of_a_hint(key):
    field, values = VALUES[key]
    for theirs, ours in values.items():
        assert find_hints({key: theirs}) == {field: ours}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ([3, 32, 48], (32, 48)),
        ([32, 48, 3], (32, 48)),
        ([48, 32, 3], (48, 32)),
        ([3, 48, 32], (48, 32)),
        ([64, 32, 32], (32, 32)),
        ([None, 48, 32, 3], (48, 32)),
        ([48, 32], (48, 32)),
    ],
    ids=str,
)
def test_an_image_size_with_and_without_channels(size, expected):
    assert find_hints({"input_size": size}) == {"image_sizes": [expected]}


# The configuration.


def test_heads_come_from_the_argument(alone):
    path = alone(TIMM)
    with pytest.raises(ValueError, match=f"^{path}: timm .* does not store"):
        from_checkpoint(path)
    assert from_checkpoint(path, num_heads=3).config.num_heads == 3
    with pytest.raises(ValueError, match="`num_heads` must divide"):
        from_checkpoint(path, num_heads=5)


@pytest.mark.parametrize("name", [TOKEN, TIMM])
def test_heads_that_the_file_shows_are_not_overruled(name):
    with pytest.raises(ValueError, match=r"has 3 heads. .*num_heads=4"):
        from_checkpoint(path_of(name), num_heads=4)
    assert from_checkpoint(path_of(name), num_heads="published").config == (
        from_checkpoint(path_of(name)).config
    )


def test_the_published_number_of_heads_is_suggested_and_not_assumed():
    source = checkpoint_of("timm", VARIANTS["B/16"].config)
    # Only a configuration of timm, which names one of its own models, will do.
    for config in ({}, {"model_type": "vit"}):
        source.json = config
        with pytest.raises(ValueError, match="model of this size has 12"):
            find(source)
    source.json = {"architecture": "vit_base_patch16_224"}
    assert find(source).config.num_heads == 12


def test_the_published_number_of_heads_is_assumed_if_asked_for(alone):
    source = checkpoint_of("timm", VARIANTS["B/16"].config)
    found = find(source, Known("published"))
    assert found.config.num_heads == 12
    assert "number of heads: 12 are assumed" in " ".join(found.notes)
    # No published model has this size.
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(alone(TIMM), num_heads="published")


@pytest.mark.parametrize(
    ("argument", "value"),
    [*(("num_heads", v) for v in (0, "6", 3.0, True)), ("architecture", 3)],
)
def test_an_argument_that_cannot_be_one(argument, value, alone):
    rule = f"^`{argument}` must be .*Received: {argument}={value!r}$"
    for read in (from_checkpoint, read_preprocessing):
        with pytest.raises(ValueError, match=rule):
            read(alone(TIMM), **{argument: value})


def test_a_damaged_array_is_outvoted_and_named(load):
    arrays = stored_in(TOKEN)
    arrays["embedding/kernel"] = np.zeros((8, 8, 3, 25), "float32")
    arrays["head/kernel"] = np.zeros((24, 8), "float32")
    with pytest.raises(ValueError) as error:
        load(arrays)
    for words in (
        "embedding/kernel (8, 8, 3, 25), expected (8, 8, 3, 24)",
        "head/kernel (24, 8), expected (24, 7)",
    ):
        assert words in str(error.value)


def test_a_norm_after_the_pooling_implies_averaging(load):
    """timm has fc_norm where it averages, the class token or not."""
    arrays = forms.renamed(stored_in(TIMM), (r"^norm\.", "fc_norm."))
    config = load(arrays, num_heads=3).config
    assert (config.pooling, config.use_pooling_norm) == ("avg", True)


def test_a_pooling_that_the_weights_belie_is_passed_over(load):
    assert load(stored_in(TOKEN), {"pool": "map"}).config.pooling == "token"


# Names that no VisionTransformer has.

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
