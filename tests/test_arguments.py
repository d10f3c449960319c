"""The numbers that layers are given."""

import json

import numpy as np
import pytest

from keras_vit import layers

GRID = {"grid_size": (2, 3)}
# The numbers of each layer, with the other arguments that it needs.
WHOLE = [
    (layers.AttentionPooling, "num_heads", {"mlp_dim": 8}),
    (layers.AttentionPooling, "mlp_dim", {"num_heads": 2}),
    (layers.DistilledHead, "num_classes", {}),
    (layers.MixedRotaryPositions, "num_heads", {**GRID, "head_size": 4}),
    (layers.MlpBlock, "mlp_dim", {}),
    (layers.MultiHeadSelfAttention, "num_heads", {}),
    (layers.PatchEncoder, "patch_size", {"width": 8}),
    (layers.PatchEncoder, "width", {"patch_size": 8}),
    (layers.PrefixTokens, "num_tokens", {}),
    (layers.ProbePooling, "num_heads", {}),
    (layers.RelativePositionKeys, "num_heads", GRID),
    (layers.RelativePositionMlp, "hidden_dim", {**GRID, "num_heads": 2}),
    (layers.RelativePositionTable, "num_heads", GRID),
    (layers.LearnedPositionEmbedding, "patch_size", GRID),
    (layers.TransformerBlock, "num_heads", {"mlp_dim": 8}),
    (layers.TransformerBlock, "mlp_dim", {"num_heads": 2}),
]
WHOLE_OR_0 = [
    (layers.AveragePooling, "num_prefix_tokens", {}),
    (layers.DistilledPooling, "num_classes", {}),
    (layers.MaxPooling, "num_prefix_tokens", {}),
    (
        layers.PatchAttentionPooling,
        "num_prefix_tokens",
        {"num_heads": 2, "mlp_dim": 8},
    ),
    (layers.SinCosPositionEmbedding, "num_prefix_tokens", GRID),
    (
        layers.RelativePositionKeys,
        "num_prefix_tokens",
        {**GRID, "num_heads": 2},
    ),
    (layers.TokenAndAveragePooling, "num_prefix_tokens", {}),
]
RATES = [
    (layers.MlpBlock, "dropout_rate", {"mlp_dim": 8}),
    (layers.MultiHeadSelfAttention, "dropout_rate", {"num_heads": 2}),
    (layers.StochasticDepth, "rate", {}),
    *(
        (layers.TransformerBlock, name, {"num_heads": 2, "mlp_dim": 8})
        for name in (
            "dropout_rate",
            "attention_dropout_rate",
            "stochastic_depth_rate",
        )
    ),
]
NUMBERS = [
    (layers.DistilledHead, "head_bias", {"num_classes": 3}),
    (layers.LayerScale, "initial_value", {}),
]
SIZES = [
    (layers.ImagePreprocessor, "image_size", {}),
    (layers.LearnedPositionEmbedding, "grid_size", {}),
    (layers.LearnedPositionEmbedding2D, "grid_size", {}),
    (layers.RelativePositionKeys, "grid_size", {"num_heads": 2}),
    (layers.RelativePositionTable, "grid_size", {"num_heads": 2}),
    (layers.SinCosPositionEmbedding2D, "grid_size", {}),
]


def message_for(layer_class, argument, others, value):
    with pytest.raises(ValueError) as caught:
        layer_class(**others, **{argument: value})
    return str(caught.value)


@pytest.mark.parametrize(("layer_class", "argument", "others"), WHOLE)
def test_a_positive_whole_number(layer_class, argument, others):
    for value, rule in {
        "4": "a whole number",
        4.0: "a whole number",
        None: "a whole number",
        True: "a whole number",
        (4, 4): "a whole number",
        0: "positive",
        -4: "positive",
    }.items():
        assert message_for(layer_class, argument, others, value) == (
            f"`{argument}` must be {rule}. Received: {argument}={value!r}"
        )


@pytest.mark.parametrize(("layer_class", "argument", "others"), WHOLE_OR_0)
def test_a_whole_number_or_0(layer_class, argument, others):
    for value, rule in {
        "4": "a whole number",
        1.5: "a whole number",
        -1: "0 or more",
    }.items():
        assert message_for(layer_class, argument, others, value) == (
            f"`{argument}` must be {rule}. Received: {argument}={value!r}"
        )
    assert layer_class(**others, **{argument: 0}).get_config()[argument] == 0


@pytest.mark.parametrize(("layer_class", "argument", "others"), RATES)
def test_a_rate(layer_class, argument, others):
    for value in ("0.1", None, False, -0.1, 1.0, float("nan")):
        assert message_for(layer_class, argument, others, value) == (
            f"`{argument}` must be in [0, 1). Received: {argument}={value!r}"
        )


@pytest.mark.parametrize(("layer_class", "argument", "others"), NUMBERS)
def test_a_number(layer_class, argument, others):
    for value in ("0.1", None, False, (0.1,)):
        assert message_for(layer_class, argument, others, value) == (
            f"`{argument}` must be a number. Received: {argument}={value!r}"
        )
    assert layer_class(**others, **{argument: -2}).get_config()[argument] == -2


@pytest.mark.parametrize(("layer_class", "argument", "others"), SIZES)
def test_a_size(layer_class, argument, others):
    for value in (4, "24", None, (4,), (4, 4, 3), (4, 4.0), (0, 4)):
        assert message_for(layer_class, argument, others, value) == (
            f"`{argument}` must be two positive whole numbers. "
            f"Received: {argument}={value!r}"
        )


@pytest.mark.parametrize(
    ("layer_class", "argument", "others", "value"),
    [
        *((*case, np.int64(4)) for case in WHOLE),
        *((*case, np.int32(1)) for case in WHOLE_OR_0),
        *((*case, np.float32(0.5)) for case in RATES),
        *((*case, np.float32(0.5)) for case in NUMBERS),
        *((*case, np.array([2, 3])) for case in SIZES),
        *((*case, [2, 3]) for case in SIZES),
    ],
)
def test_numbers_of_numpy_are_those_of_python(
    layer_class, argument, others, value
):
    """Or the configuration could not be written as JSON."""
    layer = layer_class(**others, **{argument: value})
    (stored,) = json.loads(json.dumps([layer.get_config()[argument]]))
    assert stored == np.asarray(value).tolist()
