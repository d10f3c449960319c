import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit.layers import MultiHeadSelfAttention, kernels
from keras_vit.layers.attention import attend, attend_by_products
from tests.contracts import gradients
from tests.layers import cases
from tests.tiny import noise, to_numpy

BACKEND = keras.backend.backend()
HEADS, LENGTH, WIDTH = 3, 5, 12
MASKS = {"no mask": None, **cases.MASKS}


class Attend(keras.layers.Layer):
    """Attention of queries, keys and values that arrive joined, with a bias."""

    def __init__(self, function, mask, has_bias, **kwargs):
        super().__init__(**kwargs)
        self.function, self.mask = function, mask
        self.bias = (
            self.add_weight(
                shape=(1, HEADS, LENGTH, LENGTH), initializer="zeros"
            )
            if has_bias
            else None
        )

    def call(self, x):
        qkv = ops.split(x, 3, axis=-1)
        return self.function(
            *qkv, num_heads=HEADS, mask=self.mask, bias=self.bias
        )


def formula(qkv, mask, bias, upstream):
    """Return attention, and the gradients of x and bias, in float64."""
    q, k, v = (
        np.moveaxis(x.reshape(2, LENGTH, HEADS, -1), 2, 1)
        for x in np.split(qkv.astype("float64"), 3, axis=-1)
    )
    scale = q.shape[-1] ** -0.5
    logits = scale * np.einsum("bkse,bkte->bkst", q, k) + bias
    if mask is not None:
        allowed = mask if mask.ndim == 3 else mask[:, None]
        logits = np.where(allowed[:, None], logits, -np.inf)
    p = softmax(logits, axis=-1)
    dy = np.moveaxis(upstream.reshape(2, LENGTH, HEADS, -1), 2, 1)
    dp = np.einsum("bkse,bkte->bkst", dy, v)
    dlogits = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
    dqkv = (
        scale * np.einsum("bkst,bkte->bkse", dlogits, k),
        scale * np.einsum("bkst,bkse->bkte", dlogits, q),
        np.einsum("bkst,bkse->bkte", p, dy),
    )

    def join(x):
        return np.moveaxis(x, 1, 2).reshape(2, LENGTH, WIDTH)

    y = join(np.einsum("bkst,bkte->bkse", p, v))
    dx = np.concatenate([join(x) for x in dqkv], axis=-1)
    return y, dx, dlogits.sum(axis=0, keepdims=True)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_value_and_gradients_are_those_of_the_formula(mask, has_bias):
    layer = Attend(attend, mask, has_bias)
    x = noise(2, LENGTH, 3 * WIDTH, seed=5)
    bias = noise(1, HEADS, LENGTH, LENGTH, seed=6)
    if has_bias:
        layer.set_weights([bias])
    # The loss of `gradients` weighs the outputs with these.
    upstream = noise(2, LENGTH, WIDTH, seed=9)
    y, dx, dbias = formula(x, mask, bias if has_bias else 0.0, upstream)
    np.testing.assert_allclose(to_numpy(layer(x)), y, rtol=0, atol=1e-5)
    found = gradients(layer, x)
    np.testing.assert_allclose(
        to_numpy(found.pop("the input")), dx, rtol=0, atol=1e-5
    )
    for gradient in found.values():
        np.testing.assert_allclose(to_numpy(gradient), dbias, rtol=0, atol=1e-5)
    assert len(found) == has_bias


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_mask_that_allows_nothing_attends_evenly(dtype):
    query, key, value = (
        ops.cast(noise(2, LENGTH, WIDTH, seed=seed), dtype) for seed in range(3)
    )
    x = attend(query, key, value, num_heads=HEADS, mask=np.zeros((2, LENGTH)))
    mean = to_numpy(ops.cast(value, "float32")).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        to_numpy(ops.cast(x, "float32")),
        np.broadcast_to(mean, (2, LENGTH, WIDTH)),
        atol=1e-6 if dtype == "float32" else 1e-2,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_logit_of_1e5_gives_no_nan(dtype):
    # It is larger than the largest float16, 65504.
    size = 4
    x = ops.cast((1e5 * size**0.5) ** 0.5 * np.eye(3, size)[None], dtype)
    value = ops.cast(np.eye(3, size)[None], dtype)
    y = attend(x, x, value, num_heads=1)
    np.testing.assert_array_equal(
        to_numpy(ops.cast(y, "float32")), np.eye(3, size)[None]
    )


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has none.")
def test_flash_attention_can_be_disabled(monkeypatch):
    query = ops.cast(noise(1, LENGTH, WIDTH), "bfloat16")
    asked = []
    monkeypatch.setattr(kernels, "attend", lambda *args: asked.append(args))
    keras.config.disable_flash_attention()
    try:
        attend(query, query, query, num_heads=HEADS)
        assert not asked
    finally:
        keras.config.enable_flash_attention()
    attend(query, query, query, num_heads=HEADS)
    assert len(asked) == 1


@pytest.mark.skipif(BACKEND != "torch", reason="The kernel of PyTorch.")
def test_training_keeps_no_scores_of_pairs_of_tokens():
    # In PyTorch, what the backward pass needs can be seen.
    import torch

    layer, length = MultiHeadSelfAttention(HEADS), 64
    x = ops.convert_to_tensor(noise(1, length, WIDTH))
    layer(x)
    sizes = {}
    for name in ("enable", "disable"):
        getattr(keras.config, f"{name}_flash_attention")()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, kept=kept: kept.append(x.numel()) or x, lambda x: x
        ):
            layer(x)
        sizes[name] = max(kept)
    keras.config.enable_flash_attention()
    assert sizes == {"enable": length * WIDTH, "disable": HEADS * length**2}


@pytest.mark.skipif(BACKEND != "torch", reason="The products of PyTorch.")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_products_in_bfloat16_are_those_of_the_kernel(
    monkeypatch, mask, has_bias
):
    layer = Attend(attend, mask, has_bias, dtype="mixed_bfloat16")
    x = noise(2, LENGTH, 3 * WIDTH, seed=5)
    bias = noise(1, HEADS, LENGTH, LENGTH, seed=6)
    if has_bias:
        layer.set_weights([bias])
    upstream = noise(2, LENGTH, WIDTH, seed=9)
    y, dx, _ = formula(x, mask, bias if has_bias else 0.0, upstream)
    for is_plain in (True, False):
        monkeypatch.setattr(kernels.own, "HAS_PLAIN_BFLOAT16", is_plain)
        found = layer(x)
        assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
        found = to_numpy(ops.cast(found, "float32"))
        np.testing.assert_allclose(found, y, rtol=0, atol=0.02)
        found = to_numpy(gradients(layer, x)["the input"])
        np.testing.assert_allclose(found, dx, rtol=0, atol=0.03)


@pytest.fixture
def fake_gpu(monkeypatch):
    """Let XLA compute on the CPU what cuDNN would compute on a GPU."""
    import jax

    original, asked = jax.nn.dot_product_attention, []

    def on_a_gpu(query, key, *others, implementation, **lengths):
        asked.append(implementation)
        assert query.shape[1] % 2 == key.shape[1] % 2 == 0
        return original(query, key, *others, implementation="xla", **lengths)

    monkeypatch.setattr(kernels.own, "has_gpu", lambda: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", on_a_gpu)
    kernels.own.cudnn_fits.cache_clear()
    yield asked
    kernels.own.cudnn_fits.cache_clear()


def compare_with_products(mask, has_bias, dtype="bfloat16", length=LENGTH):
    options = {"num_heads": HEADS, "mask": mask}
    if has_bias:
        options["bias"] = noise(1, HEADS, length, length)
    qkv = [
        ops.cast(noise(2, length, WIDTH, seed=seed), dtype) for seed in range(3)
    ]
    y, (expected, _) = (
        attend(*qkv, **options),
        attend_by_products(*qkv, **options),
    )
    np.testing.assert_allclose(
        to_numpy(ops.cast(y, "float32")),
        to_numpy(ops.cast(expected, "float32")),
        atol=2e-2,
    )


@pytest.mark.skipif(BACKEND != "jax", reason="A kernel that JAX reaches.")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_jax_asks_cudnn_on_a_gpu(fake_gpu, mask, has_bias):
    compare_with_products(mask, has_bias)
    # Once to see whether there is a kernel.
    assert fake_gpu == ["cudnn", "cudnn"]
    compare_with_products(mask, has_bias)
    assert len(fake_gpu) == 3
    # In float32, our own products are computed, which are as exact.
    compare_with_products(mask, has_bias, "float32")
    assert len(fake_gpu) == 3
    compare_with_products(None, has_bias, length=LENGTH + 1)
    assert len(fake_gpu) == 5


@pytest.mark.skipif(BACKEND != "jax", reason="A kernel that JAX reaches.")
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_what_cudnn_refuses_is_computed_by_products(
    fake_gpu, monkeypatch, mask
):
    import jax

    def refuse(*args, **options):
        raise NotImplementedError("No such size of the heads.")

    monkeypatch.setattr(jax.nn, "dot_product_attention", refuse)
    with pytest.warns(UserWarning, match="two products.*No such size"):
        compare_with_products(mask, True)
    compare_with_products(mask, True)  # Warned of once.


@pytest.mark.skipif(BACKEND != "jax", reason="A kernel that JAX reaches.")
def test_a_kernel_without_a_gradient_is_not_used(fake_gpu, monkeypatch):
    import jax

    @jax.custom_vjp
    def attend_forward(query):
        return query

    def refuse(query):
        raise NotImplementedError("Unsupported sequence length.")

    attend_forward.defvjp(refuse, refuse)
    monkeypatch.setattr(
        jax.nn,
        "dot_product_attention",
        lambda query, *others, **options: attend_forward(query),
    )
    with pytest.warns(UserWarning, match="Unsupported sequence length"):
        compare_with_products(None, True)
