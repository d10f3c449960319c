"""The numbers that layers are given."""

import json
import re

import numpy as np
import pytest

from keras_vit import layers

GRID = {"grid_size": (2, 3)}
HEADS = {**GRID, "num_heads": 2}
# The numbers of layers, with the other arguments that they need.
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
    (layers.RelativePositionMlp, "hidden_dim", HEADS),
    (layers.LearnedPositionEmbedding, "patch_size", GRID),
    (layers.TransformerBlock, "mlp_dim", {"num_heads": 2}),
]
WHOLE_OR_0 = [
    (layers.AveragePooling, "num_prefix_tokens", {}),
    (layers.DistilledPooling, "num_classes", {}),
    (
        layers.PatchAttentionPooling,
        "num_prefix_tokens",
        {"num_heads": 2, "mlp_dim": 8},
    ),
    (layers.SinCosPositionEmbedding, "num_prefix_tokens", GRID),
]
BLOCK = {"num_heads": 2, "mlp_dim": 8}
RATES = [
    (layers.MlpBlock, "dropout_rate", {"mlp_dim": 8}),
    (layers.MultiHeadSelfAttention, "dropout_rate", {"num_heads": 2}),
    (layers.StochasticDepth, "rate", {}),
    (layers.TransformerBlock, "dropout_rate", BLOCK),
    (layers.TransformerBlock, "attention_dropout_rate", BLOCK),
    (layers.TransformerBlock, "stochastic_depth_rate", BLOCK),
]
NUMBERS = [
    (layers.DistilledHead, "head_bias", {"num_classes": 3}),
    (layers.LayerScale, "initial_value", {}),
]
SIZES = [
    (layers.ImagePreprocessor, "image_size", {}),
    (layers.LearnedPositionEmbedding, "grid_size", {}),
    (layers.RelativePositionTable, "grid_size", {"num_heads": 2}),
]
NO_WHOLE = ("4", 4.5, None, True, (4, 4), -4)
WRONG = [
    *((*row, value) for row in WHOLE for value in (*NO_WHOLE, 0)),
    *((*row, value) for row in WHOLE_OR_0 for value in NO_WHOLE),
    *((*row, x) for row in RATES for x in ("0.1", None, False, -0.1, 1.0)),
    *((*row, value) for row in NUMBERS for value in ("0.1", None, False)),
    *((*row, value) for row in SIZES for value in (4, "24", (4,), (4, 4.0))),
]


@pytest.mark.parametrize(("layer_class", "argument", "others", "value"), WRONG)
def test_a_wrong_number_is_named(layer_class, argument, others, value):
    received = re.escape(f"{argument}={value!r}")
    with pytest.raises(
        ValueError, match=f"^`{argument}` must be .*{received}$"
    ):
        layer_class(**others, **{argument: value})


@pytest.mark.parametrize(
    ("layer_class", "argument", "others", "value"),
    [
        *((*case, np.int64(4)) for case in WHOLE),
        *((*case, np.int32(0)) for case in WHOLE_OR_0),
        *((*case, np.float32(0.5)) for case in (*RATES, *NUMBERS)),
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
