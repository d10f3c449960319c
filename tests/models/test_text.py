"""TextTransformer: masks, poolings, and the checks of its configuration."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.models import TextConfig, TextTransformer
from tests.tiny import randomize, to_numpy

CONFIG = TextConfig(
    vocabulary_size=20,
    context_length=6,
    width=12,
    depth=2,
    mlp_dim=20,
    num_heads=3,
    output_size=8,
    end_token=4,
)
# The first end token is at the places 2 and 3, the largest one at 1 and 5.
TOKENS = np.array([[1, 9, 4, 4, 0, 2], [3, 3, 5, 4, 7, 8]])
PLACES = {"first": (0, 0), "last": (5, 5), "largest": (1, 5), "end": (2, 3)}


def make(dtype=None, **choices):
    config = dataclasses.replace(CONFIG, **choices)
    return randomize(TextTransformer(config, dtype=dtype))


@pytest.mark.parametrize("pooling", PLACES)
def test_a_pooling_reads_one_token(pooling):
    model = make(pooling=pooling, output_size=None)
    norm = model.get_layer("final_norm").output
    rows = to_numpy(keras.Model(model.input, norm)(TOKENS))
    expected = rows[np.arange(2), PLACES[pooling]]
    np.testing.assert_array_equal(to_numpy(model(TOKENS)), expected)


@pytest.mark.parametrize("use_causal_mask", [True, False])
def test_what_follows_the_end_counts_without_a_mask_alone(use_causal_mask):
    model = make(use_causal_mask=use_causal_mask)
    vectors = to_numpy(model(TOKENS[:1]))
    changed = TOKENS[:1].copy()
    changed[0, 3:] = 11
    difference = np.abs(to_numpy(model(changed)) - vectors).max()
    assert difference < 1e-5 if use_causal_mask else difference > 1e-2
    earlier = TOKENS[:1].copy()
    earlier[0, 0] = 11
    assert np.abs(to_numpy(model(earlier)) - vectors).max() > 1e-2


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_stays_near(dtype):
    model = make()
    half = make(dtype)
    np.testing.assert_allclose(
        to_numpy(half(TOKENS)), to_numpy(model(TOKENS)), atol=0.1
    )
    assert keras.backend.standardize_dtype(half(TOKENS).dtype) == "float32"


def test_saved_and_reloaded(tmp_path):
    model = make(layer_scale_init=0.5, use_output_bias=True, logit_bias=-2.0)
    model.save(tmp_path / "text.keras")
    again = keras.saving.load_model(tmp_path / "text.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(
        to_numpy(again(TOKENS)), to_numpy(model(TOKENS))
    )


@pytest.mark.parametrize(
    "choices",
    [
        {"num_heads": 5},
        {"width": 0},
        {"depth": 1.5},
        {"vocabulary_size": True},
        {"end_token": None},
        {"end_token": [4]},
        {"pooling": "middle"},
        {"activation": "gleu"},
        {"layer_norm_epsilon": "small"},
    ],
)
def test_wrong_values_are_named(choices):
    [name] = choices
    with pytest.raises(ValueError, match=f"`{name}`"):
        dataclasses.replace(CONFIG, **choices)
