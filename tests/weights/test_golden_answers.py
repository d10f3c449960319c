"""Models of the golden checkpoints, against the outputs of their sources."""

import keras
import numpy as np
import pytest

from keras_vit import from_checkpoint
from keras_vit.models.features import run_with_scores
from tests.tiny import to_numpy
from tests.weights.cases import (
    NAMES,
    answer_of,
    arguments_of,
    expected_of,
    family_of,
    model_of,
    other_gelu,
    path_of,
    tolerance_of,
)

each_case = pytest.mark.parametrize("name", NAMES)
ONE_OF_EACH_FAMILY = {
    family_of(name): name for name in NAMES if name != "keras_hub_backbone"
}.values()
IS_JAX = keras.backend.backend() == "jax"


def answer(model, name):
    return to_numpy(model(expected_of(name)["x"]))


def part_answer(model, layer, name):
    part = keras.Model(model.input, model.get_layer(layer).output)
    return answer(part, name)


def close(actual, expected, tolerance):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@each_case
def test_the_model_answers_as_its_source(name):
    """Whatever else is in a batch."""
    model, tolerance = model_of(name), tolerance_of(name)
    close(answer(model, name), answer_of(name), tolerance)
    images = expected_of(name)["x"]
    for image, expected in zip(images, answer_of(name)):
        # JAX compiles every operation once for each shape.
        copies = np.repeat(image[None], len(images) if IS_JAX else 1, axis=0)
        close(to_numpy(model(copies))[0], expected, tolerance)


@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_the_other_gelu_answers_otherwise(name):
    kind = other_gelu(model_of(name).config.activation)
    other = from_checkpoint(
        path_of(name), **arguments_of(name), activation=kind
    )
    assert other.config.activation == kind
    assert np.abs(answer(other, name) - answer_of(name)).max() > 1e-5


@each_case
def test_tokens_of_every_block(name):
    expected, model = expected_of(name), model_of(name)
    flax = "tokens/Transformer/encoderblock_{}"
    keys = [
        key
        for index in range(model.config.depth)
        for key in (flax.format(index), f"hidden/{index + 1}")
        if key in expected
    ]
    # Not every library gives them; those that do give all of them.
    has_them = name.startswith("official") or name == "hf_vit"
    assert len(keys) == (model.config.depth if has_them else 0)
    for index, key in enumerate(keys):
        tokens = part_answer(model, f"block_{index:02d}", name)
        close(tokens, expected[key], tolerance_of(name))


# Arrays of the source, and the layer that computes each, or the one instead.
PARTS = {
    "encoded": ("encoder_norm", "block_01"),
    "tokens": ("encoder_norm", "block_01"),  # A norm may follow the pooling.
    "tokens/Transformer": ("encoder_norm", None),
    "pre_logits": ("pre_logits", "pooling"),  # What the head reads.
}


@each_case
def test_what_is_between_the_blocks_and_the_head(name):
    model, expected = model_of(name), expected_of(name)
    names = [layer.name for layer in model.layers]
    found = [key for key in PARTS if key in expected]
    # Keras' own models, and those of Hugging Face, give other parts.
    assert found or name.startswith(("hf", "keras", "vit_keras"))
    for key in found:
        layer = next(layer for layer in PARTS[key] if layer in names)
        tokens = part_answer(model, layer, name)
        close(tokens, expected[key], tolerance_of(name))


def test_attention_maps():
    model, expected = model_of("hf_vit"), expected_of("hf_vit")
    before = "position_embedding"
    for index in range(model.config.depth):
        tokens = part_answer(model, before, "hf_vit")
        before = f"block_{index:02d}"
        _, scores = run_with_scores(model.get_layer(before), tokens)
        close(to_numpy(scores), expected[f"attention/{index}"], 1e-6)
