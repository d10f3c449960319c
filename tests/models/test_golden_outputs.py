"""The outputs of the official models, computed by their own code."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests.golden.reader import FOLDER, load_case
from tests.tiny import to_numpy

CASES = sorted(
    path.stem
    for family in ("official", "big_vision")
    for path in FOLDER.glob(f"{family}_*.json")
)
# Convolutions, standardisations and group norms in a row cost more rounding.
TOLERANCES = {"official_hybrid": 5e-5, "official_hybrid_root_only": 5e-5}
each_case = pytest.mark.parametrize("name", CASES)

load = functools.cache(load_case)


def answer(name, layer_name):
    """Return (the output of layer `layer_name` of the case, its tolerance)."""
    model, expected = load(name)
    layer = model.get_layer(layer_name)
    part = keras.Model(model.input, layer.output)
    return to_numpy(part(expected["x"])), TOLERANCES.get(name, 1e-5)


def test_all_cases_are_here():
    assert len(CASES) == 11


@each_case
def test_logits(name):
    actual, tolerance = answer(name, "predictions")
    expected = load(name)[1]["logits"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@each_case
def test_tokens_after_every_block(name):
    model, expected = load(name)
    blocks = [x.name for x in model.layers if x.name.startswith("block_")]
    prefix = "tokens/Transformer/encoderblock_"
    keys = [key for key in expected if key.startswith(prefix)]
    assert len(keys) in (0, len(blocks))  # Big_vision's cases hold none.
    for index, block in enumerate(blocks[: len(keys)]):
        actual, tolerance = answer(name, block)
        np.testing.assert_allclose(
            actual, expected[f"{prefix}{index}"], rtol=0, atol=tolerance
        )


@each_case
def test_encoded_tokens(name):
    expected = load(name)[1]
    key = "encoded" if "encoded" in expected else "tokens/Transformer"
    actual, tolerance = answer(name, "encoder_norm")
    np.testing.assert_allclose(actual, expected[key], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", [n for n in CASES if "big_vision" in n])
def test_what_the_head_reads(name):
    # Big_vision calls it pre_logits whether or not there is such a layer.
    model, expected = load(name)
    names = [layer.name for layer in model.layers]
    reads = "pre_logits" if "pre_logits" in names else "pooling"
    actual, tolerance = answer(name, reads)
    np.testing.assert_allclose(
        actual, expected["pre_logits"], rtol=0, atol=tolerance
    )


@each_case
def test_the_other_gelu_gives_another_answer(name):
    # Else the cases would not tell which GELU a model has.
    model, expected = load(name)
    assert model.config.activation == "tanh"
    config = dataclasses.replace(model.config, activation="exact")
    other = VisionTransformer(config)
    other.set_weights(model.get_weights())
    difference = to_numpy(other(expected["x"])) - expected["logits"]
    assert np.abs(difference).max() > 1e-5


@each_case
def test_answers_do_not_depend_on_the_rest_of_the_batch(name):
    model, expected = load(name)
    for image, logits in zip(expected["x"], expected["logits"]):
        np.testing.assert_allclose(
            to_numpy(model(image[None]))[0],
            logits,
            rtol=0,
            atol=TOLERANCES.get(name, 1e-5),
        )
