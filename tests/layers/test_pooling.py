import keras
import numpy as np
import pytest
from scipy.special import softmax

from keras_vit.layers import (
    AttentionPooling,
    AveragePooling,
    MaxPooling,
    TokenPooling,
)
from tests.layers.test_mlp_block import FORMULAS
from tests.layers.test_transformer_block import layer_norm
from tests.tiny import noise, randomize, to_numpy

MASK = np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]], bool)


def test_token_takes_the_first_token():
    x = noise(2, 5, 12)
    np.testing.assert_array_equal(to_numpy(TokenPooling()(x)), x[:, 0])


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(
    ("layer_class", "reduce"), [(AveragePooling, np.mean), (MaxPooling, np.max)]
)
def test_patches_are_pooled_without_the_prefix(layer_class, reduce, prefix):
    x = noise(2, 5, 12)
    layer = layer_class(num_prefix_tokens=prefix)
    expected = reduce(x[:, prefix:], axis=1)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-6)
    # A class token of any value changes nothing.
    x[:, :prefix] = 1e6
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-6)


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize(
    ("layer_class", "reduce"), [(AveragePooling, np.mean), (MaxPooling, np.max)]
)
def test_masked_patches_do_not_count(layer_class, reduce, prefix):
    x = noise(2, 5, 12)
    expected = [
        reduce(image[prefix:][mask[prefix:]], axis=0)
        for image, mask in zip(x, MASK)
    ]
    layer = layer_class(num_prefix_tokens=prefix)
    y = to_numpy(layer(x, mask=MASK))
    np.testing.assert_allclose(y, expected, atol=1e-6)


@pytest.mark.parametrize("layer_class", [AveragePooling, MaxPooling])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_mask_of_nothing_gives_finite_numbers(layer_class, policy):
    layer = layer_class(dtype=policy)
    y = layer(noise(2, 5, 12), mask=np.zeros((2, 5), bool))
    assert np.isfinite(to_numpy(y)).all()


def test_average_is_summed_in_float32():
    # A bfloat16 sum of ones stops at 256.
    x = np.ones((1, 2000, 2), "float32")
    y = AveragePooling(dtype="mixed_bfloat16")(x)
    np.testing.assert_array_equal(to_numpy(y), np.ones((1, 2)))


def build_map(**kwargs):
    layer = AttentionPooling(num_heads=3, mlp_dim=20, **kwargs)
    layer(noise(2, 5, 12))
    return randomize(layer)


def map_in_numpy(layer, x, mask=None):
    """z = MHA(probe, x, x); z + MLP(LN(z)), head by head."""
    (probe,) = [w for w in layer.weights if w.path.endswith("probe")]
    query_kernel, query_bias = layer.query.get_weights()
    kernel, bias = layer.key_value.get_weights()
    query = to_numpy(probe) @ query_kernel + query_bias  # (1, D)
    key, value = np.split(x @ kernel + bias, 2, axis=-1)
    heads = []
    for part in np.split(np.arange(12), 3):
        logits = query[None, :, part] @ np.swapaxes(key[..., part], 1, 2) / 2
        if mask is not None:
            logits = np.where(mask[:, None], logits, -np.inf)
        heads.append(softmax(logits, axis=-1) @ value[..., part])
    out_kernel, out_bias = layer.out.get_weights()
    z = np.concatenate(heads, axis=-1)[:, 0] @ out_kernel + out_bias
    kernel1, bias1, kernel2, bias2 = layer.mlp.get_weights()
    hidden = layer_norm(z, *layer.norm.get_weights(), layer.layer_norm_epsilon)
    hidden = FORMULAS[layer.activation](hidden @ kernel1 + bias1)
    return z + hidden @ kernel2 + bias2


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("activation", FORMULAS)
def test_attention_pooling_equals_its_formula(activation, mask):
    layer, x = (
        build_map(activation=activation, layer_norm_epsilon=1e-3),
        noise(2, 5, 12),
    )
    np.testing.assert_allclose(
        to_numpy(layer(x, mask=mask)), map_in_numpy(layer, x, mask), atol=1e-5
    )


def test_attention_pooling_refuses_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="num_heads=5, width=12"):
        AttentionPooling(num_heads=5, mlp_dim=20)(noise(2, 5, 12))


@pytest.mark.parametrize(
    "layer",
    [
        TokenPooling(),
        AveragePooling(num_prefix_tokens=1),
        MaxPooling(num_prefix_tokens=1),
        AttentionPooling(num_heads=3, mlp_dim=20),
    ],
    ids=lambda layer: layer.name,
)
def test_the_mask_ends_here_without_a_warning(layer, recwarn):
    # One vector an image has no tokens left to mask.
    tokens = keras.Input((5, 12))
    pooled = layer(keras.layers.Masking()(tokens))
    assert getattr(pooled, "_keras_mask", None) is None
    keras.Model(tokens, pooled)(noise(2, 5, 12))
    assert not [w for w in recwarn if "mask" in str(w.message)]
