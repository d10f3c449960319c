"""Hints from the JSON files of other libraries."""

import json
import pathlib
import shutil

import pytest

from keras_vit import from_checkpoint
from keras_vit.weights.families.inference import find_hints
from tests.weights.cases import TIMM, path_of

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
