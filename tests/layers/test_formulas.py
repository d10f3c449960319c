"""Every layer computes its formula."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax

from keras_vit import layers
from keras_vit.layers.resnet_stem import StandardizedConv2D
from keras_vit.models.features import run_with_scores
from tests.layers import references
from tests.layers.cases import CASES, GRID, MASKS, TOKENS
from tests.layers.references import Weights
from tests.tiny import noise, randomize, to_numpy


def close(actual, expected, atol=1e-5):
    atol = atol * max(1, np.abs(expected).max())
    np.testing.assert_allclose(to_numpy(actual), expected, rtol=0, atol=atol)


OF_FORMULAS = [name for name, case in CASES.items() if case.formula]


@pytest.mark.parametrize("name", OF_FORMULAS)
def test_equals_its_formula(name):
    case = CASES[name]
    layer = case.make()
    actual, expected = to_numpy(layer(case.inputs())), case.expect(layer)
    assert actual.shape == expected.shape
    close(actual, expected)


@pytest.mark.parametrize("epsilons", ["official", "timm", "bit"])
def test_epsilons_of_small_kernels(epsilons):
    """So small that each of them gives other numbers."""
    layer = StandardizedConv2D(4, 1, epsilons=epsilons)
    x, kernel = noise(1, 2, 2, 3), noise(1, 1, 3, 4, scale=1e-5)
    layer(x)
    layer.set_weights([kernel])
    expected = references.convolve(x, kernel.astype("float64"), 1, epsilons)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, rtol=1e-3)
    with pytest.raises(ValueError, match="`epsilons`"):
        StandardizedConv2D(4, 1, epsilons="flax")


def test_the_root_of_the_stem():
    layer, x = layers.ResNetStem(()), noise(2, 16, 12, 3)
    layer(x)
    w = Weights(randomize(layer))
    y = references.convolve(x.astype("float64"), w("root_conv/kernel"), 2)
    y = np.maximum(references.group_norm(y, w, "root_norm"), 0)
    # SAME padding of an even side adds nothing at the top and at the left.
    y = np.pad(y, ((0, 0), (0, 1), (0, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(y, (3, 3), axis=(1, 2))
    close(layer(x), windows[:, ::2, ::2].max(axis=(-2, -1)))


@pytest.mark.parametrize("mask", [None, *MASKS.values()], ids=["all", *MASKS])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_attention(num_heads, mask):
    layer = layers.MultiHeadSelfAttention(num_heads)
    x = noise(*TOKENS, seed=5)
    layer(x)
    expected, expected_scores = references.attention(
        randomize(layer), x, mask=mask
    )
    y, scores = run_with_scores(layer, x, mask=mask)
    close(y, expected)
    close(scores, expected_scores, atol=1e-6)
    close(layer(x, mask=mask), expected)  # By a fused kernel, if there is one.


@pytest.mark.parametrize("activation", layers.ACTIVATIONS)
def test_activations(activation):
    """In training; those of inference are among the cases."""
    layer = layers.MlpBlock(mlp_dim=20, activation=activation)
    x = noise(*TOKENS, scale=3)
    layer(x)
    expected = references.mlp(randomize(layer), x)
    close(layer(x, training=True), expected)
    x = np.linspace(-6, 6, 241, dtype="float32")
    function = layers.ACTIVATIONS[activation]
    close(function(x), references.ACTIVATIONS[activation](x), atol=2e-6)


BLOCKS = {
    **{name: {"activation": name} for name in ("tanh", "exact")},
    "epsilon": {"layer_norm_epsilon": 1e-2},
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
        "mlp_options": {"use_inner_norm": True, "norm_epsilon": 1e-3},
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


def make_block(x, **options):
    block = layers.TransformerBlock(num_heads=3, mlp_dim=20, **options)
    block(x)
    return randomize(block)


@pytest.mark.parametrize(
    ("kind", "mask"),
    [
        *((kind, None) for kind in BLOCKS),
        *itertools.product(("tanh", "all_at_once"), MASKS),
    ],
)
def test_blocks(kind, mask):
    x, mask = noise(*TOKENS), MASKS.get(mask)
    block = make_block(x, **BLOCKS[kind])
    expected, scores = references.block(block, x, mask)
    close(block(x, mask=mask), expected)
    y, found = run_with_scores(block, x, mask=mask)
    close(y, expected)
    close(found, scores)


ANGLES = noise(5, 3, 4, seed=3)  # (T, K, E/2)


def rotation_of(angles, pairs):
    if pairs == "neighbours":
        angles = np.repeat(angles, 2, axis=-1)
    else:
        angles = np.tile(angles, (1, 1, 2))
    return np.stack([np.cos(angles), np.sin(angles)])


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_a_block_turns_queries_and_keys(pairs, heads):
    options = {"rotary_pairs": pairs, "qk_norm": "head"}
    x, angles = noise(2, 5, 24), ANGLES[:, :heads]
    block = make_block(x, attention_options=options)
    rotation = rotation_of(angles, pairs)
    found = block(x, rotation=rotation)
    close(found, references.block(block, x, angles=angles)[0])
    assert np.abs(to_numpy(found - block(x))).max() > 0.01
    with pytest.raises(ValueError, match="`pairs`"):
        layers.rotary.rotate_pairs(x.reshape(2, 5, 3, 8), rotation, "?")


def test_a_block_adds_biases_to_its_products():
    x, bias = noise(*TOKENS), noise(1, 3, 5, 5, seed=5)
    block = make_block(x)
    close(block(x, bias=bias), references.block(block, x, bias=bias[0])[0])


def test_queries_are_multiplied_with_the_keys_of_differences():
    x = noise(2, 7, 12)
    keys = layers.RelativePositionKeys(grid_size=GRID, num_heads=3)
    attention = layers.MultiHeadSelfAttention(3)
    attention(x), keys(x)
    w, table = Weights(randomize(attention)), to_numpy(randomize(keys)(x))
    query, key, _ = np.split(w.dense(x, "qkv"), 3, axis=-1)
    _, scores = run_with_scores(attention, x, relative_keys=keys(x))
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        own = key[:, None, :, part] + table  # (B, T, T, 4), query by key.
        logits = (query[:, :, None, part] * own).sum(-1) / 2
        close(scores[:, head], softmax(logits, axis=-1))


@pytest.mark.parametrize(
    ("layer_class", "reduce"),
    [(layers.AveragePooling, np.mean), (layers.MaxPooling, np.max)],
)
def test_masked_patches_do_not_count(layer_class, reduce):
    x, mask = noise(*TOKENS), MASKS["keys"]
    expected = [reduce(i[1:][m[1:]], axis=0) for i, m in zip(x, mask)]
    close(layer_class(num_prefix_tokens=1)(x, mask=mask), expected)
    for policy in ("float32", "mixed_float16"):
        y = layer_class(dtype=policy)(x, mask=np.zeros((2, 5), bool))
        assert np.isfinite(to_numpy(y)).all()


@pytest.mark.parametrize("name", ["AveragePooling", "TokenAndAveragePooling"])
def test_an_average_of_merged_tokens_heeds_a_mask(name):
    x, mask = noise(*TOKENS), MASKS["keys"]
    layer = getattr(layers, name)(num_prefix_tokens=1)
    sizes = np.ones((*x.shape[:2], 1), "float32")
    expected = to_numpy(layer(x, mask=mask))
    close(layer(x, mask=mask, sizes=sizes), expected)


@pytest.mark.parametrize("name", ["map tanh", "map of the patches", "probe"])
def test_poolings_by_attention_heed_a_mask(name):
    case, mask = CASES[name], MASKS["keys"]
    layer, x = case.make(), case.inputs()
    count = case.kwargs.get("num_prefix_tokens", 0)
    expected = references.pool_by_attention(
        layer, x[:, count:], mask[:, count:]
    )
    close(layer(x, mask=mask), expected)
