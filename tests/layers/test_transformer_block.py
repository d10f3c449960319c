import keras
import numpy as np
import pytest

from keras_vit.layers import TransformerBlock
from tests.contracts import gradients
from tests.layers.block_in_numpy import (
    block_in_numpy as numpy_block_of_any_kind,
)
from tests.layers.test_mlp_block import FORMULAS
from tests.layers.test_multi_head_self_attention import (
    MASKS,
    attention_in_numpy,
)
from tests.tiny import noise, randomize, to_numpy

WIDTH, LENGTH = 12, 5


def build(**kwargs):
    block = TransformerBlock(num_heads=3, mlp_dim=20, **kwargs)
    block(noise(2, LENGTH, WIDTH))
    return randomize(block)


def layer_norm(x, gamma, beta, epsilon):
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
    return centred / deviation * gamma + beta


def block_in_numpy(block, x, mask=None):
    """Equations 2 and 3 of the paper."""
    epsilon = block.layer_norm_epsilon
    normed = layer_norm(x, *block.attention_norm.get_weights(), epsilon)
    attended, scores = attention_in_numpy(block.attention, normed, mask)
    x = x + attended
    kernel1, bias1, kernel2, bias2 = block.mlp.get_weights()
    hidden = layer_norm(x, *block.mlp_norm.get_weights(), epsilon) @ kernel1
    return x + FORMULAS[block.activation](
        hidden + bias1
    ) @ kernel2 + bias2, scores


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("activation", FORMULAS)
def test_equals_the_equations_of_the_paper(activation, mask):
    block, x = build(activation=activation), noise(2, LENGTH, WIDTH)
    expected, _ = block_in_numpy(block, x, mask)
    y = block(x, mask=mask)
    np.testing.assert_allclose(to_numpy(y), expected, atol=1e-5)


KINDS = {
    "layer_scale": {"layer_scale_init": 0.1},
    "scaled_attention": {
        "layer_scale_init": 0.1,
        "layer_scale_branches": "attention",
    },
    "norms_after": {"norm_placement": "after", "layer_norm_epsilon": 1e-2},
    "rms": {
        "norm": "rms",
        "layer_norm_epsilon": 1e-2,
        "attention_options": {"norm": "rms", "qk_norm": "head"},
    },
    "gated": {
        "activation": "silu",
        "mlp_options": {"is_gated": True, "use_bias": False},
    },
    "inner_norms": {
        "layer_norm_epsilon": 1e-2,
        "attention_options": {"use_inner_norm": True},
        "mlp_options": {"use_inner_norm": True, "norm_epsilon": 1e-2},
    },
    "norm_of_all_heads": {
        "attention_options": {"qk_norm": "width", "use_out_bias": False}
    },
    "no_key_bias": {"attention_options": {"qkv_bias": "query_value"}},
    "no_biases": {"attention_options": {"qkv_bias": "none"}},
    "all_at_once": {
        "activation": "quick",
        "norm": "rms",
        "norm_placement": "after",
        "layer_scale_init": 0.1,
        "attention_options": {
            "qkv_bias": "query_value",
            "use_out_bias": False,
            "qk_norm": "width",
            "use_inner_norm": True,
            "norm": "rms",
        },
        "mlp_options": {
            "is_gated": True,
            "use_inner_norm": True,
            "norm": "rms",
            "use_bias": False,
        },
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_formulas_of_other_families(kind):
    block, x = build(**KINDS[kind]), noise(2, LENGTH, WIDTH)
    expected = numpy_block_of_any_kind(block, x)
    np.testing.assert_allclose(to_numpy(block(x)), expected, atol=2e-5)
    plain = build()
    names = {w.path.split("/", 1)[1] for w in block.weights}
    shared = names == {w.path.split("/", 1)[1] for w in plain.weights}
    if shared:  # Then the formula must differ.
        plain.set_weights(block.get_weights())
        assert np.abs(to_numpy(plain(x)) - expected).max() > 1e-3


@pytest.mark.parametrize("kind", ["all_at_once", "inner_norms"])
def test_rematerialization_changes_no_gradient(kind):
    x, bias = noise(2, LENGTH, WIDTH), noise(1, 3, LENGTH, LENGTH, seed=7)
    found = [
        gradients(build(**KINDS[kind], use_remat=use_remat), x, training=True)
        for use_remat in (False, True)
    ]
    for one, other in zip(*(x.values() for x in found), strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-5)
    answers = [
        to_numpy(
            build(**KINDS[kind], use_remat=use_remat)(
                x, bias=bias, training=True
            )
        )
        for use_remat in (False, True)
    ]
    np.testing.assert_allclose(*answers, atol=1e-6)


def test_the_epsilon_of_the_layer_norms_is_used():
    x = noise(2, LENGTH, WIDTH, scale=1e-2)
    small, large = build(), build(layer_norm_epsilon=1e-3)
    assert np.abs(to_numpy(small(x)) - to_numpy(large(x))).max() > 1e-2
    for block in (small, large):
        np.testing.assert_allclose(
            to_numpy(block(x)), block_in_numpy(block, x)[0], atol=1e-5
        )


def test_default_epsilon_is_the_official_one_and_not_that_of_keras():
    block = TransformerBlock(num_heads=3, mlp_dim=20)
    assert block.attention_norm.epsilon == block.mlp_norm.epsilon == 1e-6


def test_a_dropped_block_passes_its_input_on():
    block = build(stochastic_depth_rate=0.999)
    keras.utils.set_random_seed(0)
    x = noise(2, LENGTH, WIDTH)
    np.testing.assert_array_equal(to_numpy(block(x, training=True)), x)
    assert np.abs(to_numpy(block(x)) - x).max() > 0.1


def test_either_branch_is_dropped_by_itself():
    keras.utils.set_random_seed(1)
    block = build(stochastic_depth_rate=0.5)
    x = np.repeat(noise(1, LENGTH, WIDTH), 200, axis=0)
    y = to_numpy(block(x, training=True))
    # Each image has one of four fates: neither branch, either, both.
    fates, counts = np.unique(y[:, 0].round(3), axis=0, return_counts=True)
    assert len(fates) == 4
    assert counts.min() > 20


@pytest.mark.parametrize(
    "rate", ["dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"]
)
def test_each_rate_acts_in_training_and_only_then(rate):
    keras.utils.set_random_seed(0)
    block, x = build(**{rate: 0.5}), noise(8, LENGTH, WIDTH)
    trained = to_numpy(block(x, training=True))
    assert np.abs(trained - to_numpy(block(x))).max() > 0.1
    np.testing.assert_array_equal(to_numpy(block(x)), to_numpy(build()(x)))


def test_a_mask_travels_through_blocks_of_a_functional_model():
    tokens = keras.Input((LENGTH, WIDTH))
    masked = keras.layers.Masking(mask_value=9.0)(tokens)
    first, second = (TransformerBlock(3, 20, name=n) for n in ("a", "b"))
    model = randomize(keras.Model(tokens, second(first(masked))))
    x = noise(2, LENGTH, WIDTH)
    x[0, 3:] = x[1, 1] = 9.0
    mask = ~np.all(x == 9.0, axis=-1)
    y = np.where(mask[..., None], x, 0)
    for block in (first, second):
        y, _ = block_in_numpy(block, y, mask)
    np.testing.assert_allclose(to_numpy(model(x)), y, atol=1e-5)


def test_heads_that_do_not_divide_the_width_are_an_error():
    with pytest.raises(ValueError, match="num_heads=5, width=12"):
        TransformerBlock(num_heads=5, mlp_dim=20)(noise(2, LENGTH, WIDTH))
