import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.layers import POOLINGS
from keras_vit.layers.pooling import PoolingLayer
from keras_vit.models import DenseConfig
from keras_vit.models.config import CHOICES
from tests.tiny import NO_TOKEN, tensorflow_only, tiny_config

# Asserted by the tests of google-research/vision_transformer, at 224 pixels
# with 1000 classes. Written out: a number computed by the code under test
# would agree with any mistake.
OFFICIAL = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "S/32": 22_878_952,
    "B/8": 86_576_872,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "L/32": 306_535_400,
    "H/14": 632_045_800,
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R26+B/32": 101_383_976,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
    "S/16-gap": 22_049_896,
    "S/32-gap": 22_878_184,
    "B/16-gap": 86_566_120,
    "B/32-gap": 88_222_696,
}
# Encoders of google-research/big_vision at 224 pixels: average pooling, no
# class token, no head; and the width that a head of 1000 classes reads.
BIG_VISION_ENCODERS = {
    "mu/16": (43_648, 32),
    "M/16": (38_323_712, 512),
    "So400m/14": (412_442_352, 1152),
    "g/14": (1_011_199_616, 1408),
    "g-opt/16": (1_134_746_112, 1536),
    "G/14": (1_842_772_352, 1664),
    "G-opt/16": (1_663_486_464, 1536),
    "e/14": (3_805_417_728, 1792),
}
# Of the paper alone. By hand, from the stems of two official hybrids,
# 98,659,112 - 86,764,264 = 11,894,848 (3, 4, 9) and 328,994,856 - 305,486,824 =
# 23,508,032 (3, 4, 6, 3), and the rest of the other model: projection of 1024
# or 2048 channels, token, positions, blocks, norm, head.
OF_THE_PAPER = {
    "R50+B/32": 23_508_032
    + (2048 * 768 + 768 + 768 + 50 * 768)
    + (12 * 7_087_872 + 2 * 768 + 769 * 1000),
    "R50+L/16": 11_894_848
    + (1024 * 1024 + 1024 + 1024 + 197 * 1024)
    + (24 * 12_596_224 + 2 * 1024 + 1025 * 1000),
}
# By hand, D=64, M=256, 16 patches of 2x2x1: 320 patches + 64 class token +
# 17*64 positions + 6*(4*64 + 4*(64*64+64) + 2*64*256+256+64) blocks + 128
# norm + 65*1000 head.
OURS = {"Pico/2": 320 + 64 + 1088 + 6 * 49_984 + 128 + 65_000}

GOLDEN = {
    **OFFICIAL,
    **{
        name: encoder + (width + 1) * 1000
        for name, (encoder, width) in BIG_VISION_ENCODERS.items()
    },
    **OF_THE_PAPER,
    **OURS,
}


def test_the_table_states_the_golden_numbers():
    assert {n: row.num_parameters for n, row in VARIANTS.items()} == GOLDEN


# tests/weights/families/test_family.py counts the weights of all variants, and
# compares the list of weights with those of models of every kind.
@tensorflow_only
@pytest.mark.parametrize("name", ["Ti/16", "R+Ti/16", "S/16-gap", "mu/16"])
def test_the_model_has_the_golden_number_of_parameters(name):
    """Of the real graph, without the memory of the weights."""
    with keras.StatelessScope(initialize_variables=False):
        model = VisionTransformer(VARIANTS[name].config)
    assert model.count_params() == GOLDEN[name]
    keras.backend.clear_session()


@pytest.mark.parametrize("name", VARIANTS)
def test_dropout_is_that_of_the_official_configuration(name):
    expected = 0.1 if name in {"L/16", "H/14", "R50+B/16", "R50+L/32"} else 0
    config = VARIANTS[name].config
    assert config.dropout_rate == expected
    assert config.attention_dropout_rate == 0
    assert config.activation == "tanh"


@pytest.mark.parametrize(
    ("choices", "feature_size", "grid_size"),
    [
        ({"patch_size": 16, "image_size": 224}, (224, 224), (14, 14)),
        ({"patch_size": 8, "image_size": (16, 32)}, (16, 32), (2, 4)),
        # The root alone divides by 4, then the patches by 8.
        (
            {"patch_size": 8, "image_size": 224, "stem_stages": ()},
            (56, 56),
            (7, 7),
        ),
        (
            {"patch_size": 1, "image_size": 224, "stem_stages": (3, 4, 9)},
            (14, 14),
            (14, 14),
        ),
        (
            {"patch_size": 1, "image_size": 224, "stem_stages": (2, 2, 2, 2)},
            (7, 7),
            (7, 7),
        ),
        (
            {"patch_size": 1, "image_size": (33, 64), "stem_stages": (1,)},
            (9, 16),
            (9, 16),
        ),
    ],
)
def test_sizes_of_the_grid(choices, feature_size, grid_size):
    config = ViTConfig(24, 1, 48, 3, **choices)
    assert config.feature_size == feature_size
    assert config.grid_size == grid_size


def test_sizes_are_stored_as_tuples():
    config = tiny_config(image_size=[16, 32], stem_stages=[1], patch_size=1)
    assert config.image_size == (16, 32)
    assert config.stem_stages == (1,)
    assert tiny_config(image_size=16).image_size == (16, 16)
    assert DenseConfig(5, blocks=range(4)).blocks == (0, 1, 2, 3)
    # So that it is the same after a trip through JSON, and hashable.
    assert hash(config) == hash(ViTConfig(**dataclasses.asdict(config)))


def test_numbers_of_numpy_are_stored_as_those_of_python():
    config = tiny_config(
        num_classes=np.int64(5),
        head_bias=np.float32(-2),
        use_class_token=np.bool_(True),
        stem_stages=np.array([1, 2]),
        patch_size=np.int32(1),
    )
    assert config == tiny_config(
        num_classes=5, head_bias=-2.0, stem_stages=(1, 2), patch_size=1
    )
    assert json.loads(json.dumps(dataclasses.asdict(config)))


INF, NAN = float("inf"), float("nan")
# Field -> wrong values, and what the message names.
ERRORS = {
    "depth": (("1", 0), "depth"),
    "width": ((24.0, 0), "width"),
    "mlp_dim": ((-1,), "mlp_dim"),
    "num_heads": ((0, 5), "num_heads"),
    "patch_size": (((8, 8), 0), "patch_size"),
    "channels": ((0,), "channels"),
    "num_classes": ((None, -1), "num_classes"),
    "num_registers": ((True, -1), "num_registers"),
    "image_size": (
        (True, None, 0, (32, None), (32, 32, 3), (32, 30), "32"),
        "image_size",
    ),
    "stem_stages": (((1, 1.5), (1, 0)), "stem_stages"),
    "pooling_indices": ((0,), "pooling_indices"),
    "pooling_mlp_dim": ((1.5,), "pooling_mlp_dim"),
    "pooling_heads": ((5, 0), "pooling_heads"),
    "representation_size": ((-1,), "representation_size"),
    "head_bias": (("-10",), "head_bias"),
    "layer_scale_init": ((True, INF), "layer_scale_init"),
    "use_class_token": ((1,), "use_class_token"),
    "dropout_rate": ((1.0,), "dropout_rate"),
    "attention_dropout_rate": ((-0.1,), "attention_dropout_rate"),
    "stochastic_depth_rate": ((2,), "stochastic_depth_rate"),
    "rotary_temperature": ((0.0, NAN), "rotary_temperature"),
    "layer_norm_epsilon": ((0.0,), "layer_norm_epsilon"),
    "preprocessing": (
        (3, "vitt", ((0.5,) * 2,) * 2),
        "preprocessing|mode|norm",
    ),
    **{
        field: (("erf",), f"`{field}` must be one of .*Received: {field}='erf'")
        for field in CHOICES
    },
}
# What fields contradict each other, and the one that the message names first.
CONTRADICTIONS = [
    ({"image_size": (64, 40), "stem_stages": ()}, "patch_size"),
    ({"pooling": "distilled"}, "pooling"),
    ({"pooling": "token", "use_class_token": False}, "pooling"),
    ({**NO_TOKEN, "use_distillation_token": True}, "use_distillation_token"),
    ({**NO_TOKEN, "rotary_positions": "axial_class"}, "rotary_positions"),
    ({"num_heads": 4, "rotary_positions": "axial"}, "rotary_positions"),
    ({"relative_positions": "mlp"}, "relative_hidden_dim"),
    (
        {"relative_positions": "table", "use_dynamic_image_size": True},
        "relative_positions",
    ),
    (
        {"pooling": "prefix", "num_registers": 1, "pooling_indices": (0, 2)},
        "pooling_indices",
    ),
    ({"pooling": "prefix", "pooling_indices": ()}, "pooling_indices"),
    (
        {"position_placement": "every_block", "position_embedding": "none"},
        "position_embedding",
    ),
    (
        {"position_placement": "every_block", "use_prefix_positions": False},
        "use_prefix_positions",
    ),
]


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f in ERRORS for v in ERRORS[f][0]], ids=str
)
def test_a_wrong_value_is_named(field, value):
    with pytest.raises(ValueError, match=ERRORS[field][1]):
        tiny_config(**{field: value})


@pytest.mark.parametrize(("choices", "field"), CONTRADICTIONS, ids=str)
def test_fields_that_contradict_each_other_are_named(choices, field):
    with pytest.raises(ValueError, match=f"^`{field}` .*Received: {field}="):
        tiny_config(**choices)


@pytest.mark.parametrize("token", ["class", "distillation"])
def test_a_new_pooling_states_the_token_that_it_needs(token, monkeypatch):
    row = type("NewPooling", (PoolingLayer,), {"needed_token": token})
    monkeypatch.setitem(POOLINGS, "new", row)
    with pytest.raises(ValueError, match=f"needs the {token} token"):
        tiny_config(pooling="new", use_class_token=False)
