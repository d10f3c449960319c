import keras
import numpy as np
import pytest
from scipy.special import softmax

from keras_vit.layers import MultiHeadSelfAttention
from keras_vit.models.features import run_with_scores
from tests.tiny import noise, randomize, to_numpy


def attention_in_numpy(layer, x, mask=None):
    """Multi-head attention as in appendix A of the paper, in float64.

    Head by head and with the mask as minus infinity, unlike the layer.
    """
    qkv_kernel, qkv_bias, out_kernel, out_bias = (
        w.astype("float64") for w in layer.get_weights()
    )
    width = x.shape[-1]
    size = width // layer.num_heads
    qkv = x.astype("float64") @ qkv_kernel + qkv_bias
    q, k, v = np.split(qkv, 3, axis=-1)
    results, scores = [], []
    for head in range(layer.num_heads):
        part = slice(head * size, (head + 1) * size)
        logits = q[..., part] @ np.swapaxes(k[..., part], 1, 2) / size**0.5
        if mask is not None:
            allowed = mask if mask.ndim == 3 else mask[:, None, :]
            logits = np.where(allowed, logits, -np.inf)
        scores.append(softmax(logits, axis=-1))
        results.append(scores[-1] @ v[..., part])
    y = np.concatenate(results, axis=-1) @ out_kernel + out_bias
    return y, np.stack(scores, axis=1)


def build(num_heads=3, width=12, length=5, **kwargs):
    layer = MultiHeadSelfAttention(num_heads, **kwargs)
    layer(noise(2, length, width))
    return randomize(layer)


MASKS = {
    "none": None,
    "keys": np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]], bool),
    "pairs": np.tril(np.ones((2, 5, 5), bool)),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("num_heads", [1, 3, 12])
def test_equals_the_formula_of_the_paper(num_heads, mask):
    x = noise(2, 5, 12, seed=5)
    layer = build(num_heads)
    expected, expected_scores = attention_in_numpy(layer, x, mask)
    y, scores = run_with_scores(layer, x, mask=mask)
    np.testing.assert_allclose(to_numpy(y), expected, atol=1e-5)
    np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-6)
    # A fused kernel sums in another order.
    np.testing.assert_allclose(
        to_numpy(layer(x, mask=mask)), to_numpy(y), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("mask", [MASKS["keys"], MASKS["pairs"]])
def test_a_masked_token_is_not_read(mask):
    layer = build()
    x = noise(2, 5, 12)
    changed = x.copy()
    allowed = mask if mask.ndim == 3 else np.tile(mask[:, None], (1, 5, 1))
    unread = ~allowed[:, 0]  # What the first token may not attend to.
    changed[unread] = 100.0
    np.testing.assert_array_equal(
        to_numpy(layer(x, mask=mask))[:, 0],
        to_numpy(layer(changed, mask=mask))[:, 0],
    )


def test_a_mask_of_integers_is_a_mask():
    layer, x = build(), noise(2, 5, 12)
    mask = MASKS["keys"]
    np.testing.assert_array_equal(
        to_numpy(layer(x, mask=mask.astype("int32"))),
        to_numpy(layer(x, mask=mask)),
    )


def test_a_mask_that_allows_nothing_attends_evenly():
    _, scores = run_with_scores(
        build(), noise(2, 5, 12), mask=np.zeros((2, 5), bool)
    )
    np.testing.assert_allclose(to_numpy(scores), 0.2, atol=1e-6)


def test_only_a_mask_of_tokens_is_passed_on():
    layer = build()
    assert layer.compute_mask(None, MASKS["keys"]) is MASKS["keys"]
    assert layer.compute_mask(None, MASKS["pairs"]) is None
    assert layer.compute_mask(None, None) is None


def test_permuted_tokens_give_permuted_answers():
    layer, x = build(), noise(2, 5, 12)
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(
        to_numpy(layer(x[:, order])), to_numpy(layer(x))[:, order], atol=1e-6
    )


@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-3)]
)
def test_probabilities_sum_to_one_within_rounding(policy, tolerance):
    layer = build(length=197, dtype=policy)
    x = noise(1, 197, 12)
    _, scores = run_with_scores(layer, x)
    assert keras.backend.standardize_dtype(scores.dtype) == policy[6:]
    sums = to_numpy(scores).sum(axis=-1)
    np.testing.assert_allclose(sums, 1.0, atol=tolerance)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_softmax_is_computed_in_float32(policy, monkeypatch):
    # Seen from outside a CPU gives no sign of it: TensorFlow's own softmax of
    # bfloat16 sums in float32 there. Elsewhere it need not.
    softmax_of_keras, types = keras.ops.softmax, []

    def recording(x, axis=-1):
        types.append(keras.backend.standardize_dtype(x.dtype))
        return softmax_of_keras(x, axis=axis)

    layer = build(dtype=policy)
    monkeypatch.setattr(keras.ops, "softmax", recording)
    run_with_scores(layer, noise(2, 5, 12))
    assert types == ["float32"]


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_bfloat16", "mixed_float16"]
)
def test_a_logit_of_1e5_gives_no_nan(policy):
    # It is larger than the largest float16, 65504.
    layer = MultiHeadSelfAttention(num_heads=1, dtype=policy)
    x = np.eye(3, 4, dtype="float32")[None]
    layer(x)
    scaled = (1e5 * 4**0.5) ** 0.5 * np.eye(4)  # q.k / sqrt(4) is 1e5.
    kernel = np.concatenate([scaled, scaled, np.eye(4)], axis=1)
    layer.set_weights([kernel, np.zeros(12), np.eye(4), np.zeros(4)])
    y, scores = run_with_scores(layer, x)
    # Each token has the logit of 1e5 with itself and 0 with the others.
    np.testing.assert_array_equal(to_numpy(scores)[0, 0], np.eye(3))
    np.testing.assert_array_equal(to_numpy(y), x)


def test_dropout_acts_in_training_only():
    keras.utils.set_random_seed(0)
    layer, x = build(dropout_rate=0.5), noise(2, 5, 12)
    y, trained = layer(x), layer(x, training=True)
    assert np.abs(to_numpy(y) - to_numpy(trained)).max() > 0.01
    expected, _ = attention_in_numpy(layer, x)
    np.testing.assert_allclose(to_numpy(y), expected, atol=1e-5)


def test_heads_that_do_not_divide_the_width_are_an_error():
    with pytest.raises(
        ValueError,
        match="`num_heads` must divide the width of the tokens. "
        "Received: num_heads=5, width=12",
    ):
        MultiHeadSelfAttention(5)(noise(2, 5, 12))
