import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.layers import POOLINGS
from keras_vit.layers.pooling import PoolingLayer
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


def count_params(config):
    """Count on the real graph, without the memory of the weights."""
    with keras.StatelessScope(initialize_variables=False):
        count = VisionTransformer(config).count_params()
    keras.backend.clear_session()
    return count


def test_every_variant_has_a_golden_number():
    assert set(VARIANTS) == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_table_states_the_golden_number(name):
    assert VARIANTS[name].num_parameters == GOLDEN[name]


@tensorflow_only
@pytest.mark.parametrize("name", GOLDEN)
def test_the_model_has_the_golden_number_of_parameters(name):
    assert count_params(VARIANTS[name].config) == GOLDEN[name]


@tensorflow_only
@pytest.mark.parametrize(
    ("name", "pooling", "expected"),
    [
        ("Ti/16", "avg", 5_524_032),
        ("Ti/16", "map", 5_968_704),
        ("S/16", "avg", 21_664_896),
        ("S/16", "map", 23_438_976),
        ("M/16", "map", 41_475_584),
        ("B/16", "avg", 85_797_120),
        ("B/16", "map", 92_884_224),
        ("So400m/14", "map", 427_680_704),
    ],
)
def test_encoders_of_big_vision(name, pooling, expected):
    config = dataclasses.replace(
        VARIANTS[name].config,
        use_class_token=False,
        pooling=pooling,
        num_classes=0,
    )
    assert count_params(config) == expected


@tensorflow_only
@pytest.mark.parametrize(
    ("representation_size", "expected"), [(384, 22_122_472), (None, 21_974_632)]
)
def test_the_plain_vit_baseline(representation_size, expected):
    # S/16 of arXiv:2205.01580, with its MLP head and with a linear one.
    config = dataclasses.replace(
        VARIANTS["S/16-gap"].config,
        position_embedding="sincos_2d",
        representation_size=representation_size,
    )
    assert count_params(config) == expected


def test_counting_without_weights_counts_the_weights():
    config = tiny_config(representation_size=5)
    counted = sum(np.prod(w.shape) for w in VisionTransformer(config).weights)
    if keras.backend.backend() == "tensorflow":
        assert count_params(config) == counted
    # By hand: patches, class token, positions, blocks, norm, pre-logits, head.
    block = 4 * 24 + 4 * (24 * 24 + 24) + 2 * 24 * 48 + 48 + 24
    assert counted == (
        (8 * 8 * 3 + 1) * 24 + 24 + 17 * 24 + 2 * block + 48 + 25 * 5 + 6 * 7
    )


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


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_config().width = 48


ERRORS = [
    ({"depth": "1"}, "`depth` must be a whole number. Received: depth='1'"),
    ({"width": 24.0}, "`width` must be a whole number. Received: width=24.0"),
    (
        {"patch_size": (8, 8)},
        "`patch_size` must be a whole number. Received: patch_size=(8, 8)",
    ),
    (
        {"num_classes": None},
        "`num_classes` must be a whole number. Received: num_classes=None",
    ),
    (
        {"num_registers": True},
        "`num_registers` must be a whole number. Received: num_registers=True",
    ),
    (
        {"pooling_mlp_dim": 1.5},
        "`pooling_mlp_dim` must be a whole number or None. "
        "Received: pooling_mlp_dim=1.5",
    ),
    (
        {"head_bias": "-10"},
        "`head_bias` must be a number. Received: head_bias='-10'",
    ),
    (
        {"layer_scale_init": True},
        "`layer_scale_init` must be a number or None. "
        "Received: layer_scale_init=True",
    ),
    (
        {"use_class_token": 1},
        "`use_class_token` must be True or False. Received: use_class_token=1",
    ),
    (
        {"stem_stages": (1, 1.5)},
        "`stem_stages` must be a tuple of whole numbers or None. "
        "Received: stem_stages=(1, 1.5)",
    ),
    (
        {"stem_stages": (1, 0)},
        "`stem_stages` must have a unit or more in each stage. "
        "Received: stem_stages=(1, 0)",
    ),
    (
        {"pooling_indices": 0},
        "`pooling_indices` must be a tuple of whole numbers. "
        "Received: pooling_indices=0",
    ),
    (
        {"image_size": True},
        "`image_size` must be a whole number of pixels or (height, width). "
        "Received: image_size=True",
    ),
    ({"width": 0}, "`width` must be positive. Received: width=0"),
    ({"depth": 0}, "`depth` must be positive. Received: depth=0"),
    ({"mlp_dim": -1}, "`mlp_dim` must be positive. Received: mlp_dim=-1"),
    ({"num_heads": 0}, "`num_heads` must be positive. Received: num_heads=0"),
    (
        {"patch_size": 0},
        "`patch_size` must be positive. Received: patch_size=0",
    ),
    (
        {"dropout_rate": 1.0},
        "`dropout_rate` must be in [0, 1). Received: dropout_rate=1.0",
    ),
    (
        {"attention_dropout_rate": -0.1},
        "`attention_dropout_rate` must be in [0, 1). "
        "Received: attention_dropout_rate=-0.1",
    ),
    (
        {"stochastic_depth_rate": 2},
        "`stochastic_depth_rate` must be in [0, 1). "
        "Received: stochastic_depth_rate=2",
    ),
    (
        {"num_classes": -1},
        "`num_classes` must be 0 (no head) or more. Received: num_classes=-1",
    ),
    (
        {"num_heads": 5},
        "`num_heads` must divide `width`. Received: num_heads=5, width=24",
    ),
    (
        {"image_size": None},
        "`image_size` must be a whole number of pixels or (height, width). "
        "Received: image_size=None",
    ),
    (
        {"image_size": (32, None)},
        "`image_size` must be a whole number of pixels or (height, width). "
        "Received: image_size=(32, None)",
    ),
    ({"channels": 0}, "`channels` must be positive. Received: channels=0"),
    (
        {"representation_size": -1},
        "`representation_size` must be positive or None. "
        "Received: representation_size=-1",
    ),
    (
        {"image_size": (32, 32, 3)},
        "`image_size` must be positive: a number or (height, width). "
        "Received: image_size=(32, 32, 3)",
    ),
    (
        {"image_size": 0},
        "`image_size` must be positive: a number or (height, width). "
        "Received: image_size=(0, 0)",
    ),
    (
        {"image_size": (32, 30)},
        "`patch_size` must divide the image, 32x30. "
        "Received: patch_size=8, image_size=(32, 30)",
    ),
    (
        {"image_size": (64, 40), "stem_stages": ()},
        "`patch_size` must divide the feature map, 16x10. "
        "Received: patch_size=8, image_size=(64, 40)",
    ),
    (
        {"activation": "erf"},
        "`activation` must be one of 'tanh', 'exact', 'quick', 'silu', "
        "'relu', 'elu'. Received: activation='erf'",
    ),
    (
        {"position_embedding": "rope"},
        "`position_embedding` must be one of 'none', 'learned', 'learned_2d', "
        "'sincos_1d', 'sincos_2d'. Received: position_embedding='rope'",
    ),
    (
        {"pooling": "gap"},
        "`pooling` must be one of 'token', 'avg', 'max', 'token_and_avg', "
        "'distilled', 'prefix', 'map', 'map_patches', 'probe', 'none'. "
        "Received: pooling='gap'",
    ),
    (
        {"num_registers": -1},
        "`num_registers` must be 0 or more. Received: num_registers=-1",
    ),
    (
        {"pooling": "distilled"},
        "`pooling='distilled'` needs the distillation token. "
        "Received: use_distillation_token=False",
    ),
    (
        {**NO_TOKEN, "use_distillation_token": True},
        "`use_distillation_token` needs the class token "
        "(`use_class_token=True`). Received: use_distillation_token=True",
    ),
    (
        {"pooling_heads": 5},
        "`pooling_heads` must divide `width`. Received: pooling_heads=5",
    ),
    (
        {"num_heads": 4, "rotary_positions": "axial"},
        "`rotary_positions` needs heads of a multiple of 4 features. "
        "Received: rotary_positions='axial', num_heads=4, width=24",
    ),
    (
        {"relative_positions": "mlp"},
        "`relative_hidden_dim` must be given for an MLP. "
        "Received: relative_hidden_dim=None",
    ),
    (
        {"relative_positions": "table", "use_dynamic_image_size": True},
        "`relative_positions` are those of one grid of patches. "
        "Received: use_dynamic_image_size=True",
    ),
    (
        {"pooling": "prefix", "num_registers": 1, "pooling_indices": (0, 2)},
        "`pooling_indices` must be places among the 2 tokens before the "
        "patches. Received: pooling_indices=(0, 2)",
    ),
    (
        {"pooling": "prefix", "pooling_indices": ()},
        "`pooling_indices` must be places among the 1 tokens before the "
        "patches. Received: pooling_indices=()",
    ),
    (
        {**NO_TOKEN, "rotary_positions": "axial_class"},
        "`rotary_positions='axial_class'` needs the class token. "
        "Received: use_class_token=False",
    ),
    (
        {"rotary_temperature": 0.0},
        "`rotary_temperature` must be positive. "
        "Received: rotary_temperature=0.0",
    ),
    (
        {"rotary_temperature": float("nan")},
        "`rotary_temperature` must be positive. "
        "Received: rotary_temperature=nan",
    ),
    (
        {"layer_scale_init": float("inf")},
        "`layer_scale_init` must be finite or None. "
        "Received: layer_scale_init=inf",
    ),
    (
        {"layer_scale_branches": "mlp"},
        "`layer_scale_branches` must be one of 'both', 'attention'. "
        "Received: layer_scale_branches='mlp'",
    ),
    (
        {"pooling": "token", "use_class_token": False},
        "`pooling='token'` needs the class token. "
        "Received: use_class_token=False",
    ),
]


@pytest.mark.parametrize(
    ("choices", "message"), ERRORS, ids=[str(choices) for choices, _ in ERRORS]
)
def test_choices_that_do_not_fit_are_an_error(choices, message):
    with pytest.raises(ValueError) as error:
        tiny_config(**choices)
    assert str(error.value) == message


@pytest.mark.parametrize("token", ["class", "distillation"])
def test_a_new_pooling_states_the_token_that_it_needs(token, monkeypatch):
    row = type("NewPooling", (PoolingLayer,), {"needed_token": token})
    monkeypatch.setitem(POOLINGS, "new", row)
    with pytest.raises(ValueError) as error:
        tiny_config(pooling="new", use_class_token=False)
    assert str(error.value) == (
        f"`pooling='new'` needs the {token} token. "
        f"Received: use_{token}_token=False"
    )
