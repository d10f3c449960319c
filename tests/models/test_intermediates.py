"""Blocks run from their parts, against the blocks as the model runs them."""

import keras
import numpy as np
import pytest

from keras_vit.layers import TransformerBlock
from keras_vit.models.features import (
    attention_scores,
    enter_blocks,
    get_block,
    layers_after_blocks,
    record_pass,
    run_blocks,
    run_with_scores,
    split_at_last_block,
)
from tests.tiny import (
    LATER_KINDS,
    PAPER_POSITIONS,
    make,
    noise,
    randomize,
    to_numpy,
)


@pytest.fixture(scope="module")
def block():
    """Every rate and switch that must not act in inference is on."""
    rates = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")
    block = TransformerBlock(3, 20, use_remat=True, **dict.fromkeys(rates, 0.5))
    block.build((None, 5, 12))
    return randomize(block)


def test_changed_scores_weigh_the_values(block):
    layer, x = block.attention, noise(2, 5, 12)
    shift = noise(2, 3, 5, 5, seed=2)
    plain, scores = run_with_scores(layer, x)
    y, same_scores = run_with_scores(
        layer,
        x,
        change_scores=lambda weights: (
            weights + keras.ops.convert_to_tensor(shift)
        ),
    )
    np.testing.assert_array_equal(to_numpy(same_scores), to_numpy(scores))
    # The output is linear in the weights, head by head.
    kernel, bias, out_kernel, _ = layer.get_weights()
    value = (x @ kernel + bias)[..., 24:].reshape(2, 5, 3, 4)
    change = np.einsum("bkqt,btkd->bqkd", shift, value).reshape(2, 5, 12)
    np.testing.assert_allclose(
        to_numpy(y) - to_numpy(plain), change @ out_kernel, atol=1e-5
    )


def test_changed_scores_reach_the_output_of_a_block(block):
    x, shift = noise(2, 5, 12), noise(2, 3, 5, 5, seed=2)

    def change(weights):
        return weights + keras.ops.convert_to_tensor(shift)

    attended, _ = run_with_scores(
        block.attention, block.attention_norm(x), change_scores=change
    )
    attended = x + to_numpy(attended)
    expected = attended + to_numpy(block.mlp(block.mlp_norm(attended)))
    y, _ = run_with_scores(block, x, change)
    np.testing.assert_allclose(to_numpy(y), expected, atol=1e-5)


def test_the_class_token_alone_is_as_among_all_tokens(block):
    x = noise(2, 5, 12)
    y = block(x, num_queries=1)
    expected = to_numpy(block(x))[:, :1]
    np.testing.assert_allclose(to_numpy(y), expected, atol=1e-5)


KINDS = {**LATER_KINDS, **PAPER_POSITIONS}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_models_of_other_families_run_from_their_parts(kind):
    model = make(**KINDS[kind])
    images = noise(2, 32, 32, 3)
    x, positions = enter_blocks(model, images)
    for index, inputs in enumerate(positions):
        x, scores = run_with_scores(get_block(model, index), x, **inputs)
        assert tuple(scores.shape) == (2, 3, x.shape[1], x.shape[1])
        np.testing.assert_allclose(to_numpy(scores).sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(
        to_numpy(scores), to_numpy(attention_scores(model, images)[-1])
    )
    # A fused kernel, such as PyTorch's, sums in another order than products.
    *_, (last, _) = run_blocks(model, images)
    np.testing.assert_allclose(to_numpy(last), to_numpy(x), atol=1e-5)
    for layer in layers_after_blocks(model):
        x = layer(x)
    np.testing.assert_allclose(to_numpy(x), to_numpy(model(images)), atol=1e-5)


@each_kind
def test_the_last_block_may_compute_one_token(kind):
    choices = {**KINDS[kind], "pooling": "token", "use_class_token": True}
    model = make(**choices)
    images = noise(2, 32, 32, 3)
    _, outputs = split_at_last_block(model, has_head=True)(images)
    np.testing.assert_allclose(
        to_numpy(outputs), to_numpy(model(images)), atol=1e-6
    )


def test_a_new_branch_of_a_block_is_missing_nowhere(monkeypatch):
    """Scores, gradients, exports and features come from the one forward."""
    call = TransformerBlock.call

    def call_with_branch(block, tokens, *args, **options):
        return call(block, keras.ops.tanh(tokens), *args, **options)

    model = make()
    images = noise(2, 32, 32, 3)
    before = to_numpy(attention_scores(model, images)[1])
    monkeypatch.setattr(TransformerBlock, "call", call_with_branch)
    expected = to_numpy(model(images))
    for answer in (
        split_at_last_block(model, has_head=True)(images)[1],
        record_pass(model, images).logits,
    ):
        np.testing.assert_allclose(to_numpy(answer), expected, atol=1e-4)
    *_, (tokens, _) = run_blocks(model, images)
    [features] = model.features(images, blocks=[-1], as_grid=False, norm=False)
    np.testing.assert_allclose(
        to_numpy(tokens)[:, 1:], to_numpy(features), atol=1e-4
    )
    after = to_numpy(attention_scores(model, images)[1])
    assert np.abs(after - before).max() > 1e-3
