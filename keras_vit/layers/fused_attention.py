"""Faster attention of the backends, most of it by fused kernels.

A fused kernel never holds the scores of all heads.
"""

import functools
import warnings

import keras
from keras import ops


def find_fused_attention(query, key, num_heads, mask=None, bias=None):
    """Return the fused attention of this backend for these tensors, or None.

    `keras.config.disable_flash_attention()` turns all of them off. Keras' own
    `ops.dot_product_attention` is not used: on a TPU, Keras 3.15 makes its
    attention causal if there is no mask.

    Shapes:
        query: (B, S, D). key: (B, T, D). mask: (B, 1, 1 or S, T).
        bias: (1, K, S, T).

    Args:
        query: The queries, whose type decides.
        key: The keys, which have the shape of the values.
        num_heads: Number K of heads.
        mask: True where a key may be attended to, None for none.
        bias: Added to the scaled products, None for none.

    Returns:
        A function of query, key, value, num_heads, mask and bias. It returns
        (B, S, D).
    """
    if keras.config.is_flash_attention_enabled() is False:
        return None
    dtype = keras.backend.standardize_dtype(query.dtype)
    if keras.backend.backend() == "torch":
        # A masked score needs a bias so low that adding the product does not
        # change it. In float16 there is no such number.
        is_lost = mask is not None and dtype == "float16"
        return None if is_lost else _attend_in_torch
    # On other devices than GPUs, XLA compiles our own products to faster code,
    # and cuDNN has no kernel for float32.
    if keras.backend.backend() == "jax" and dtype != "float32" and _has_gpu():
        shapes = (
            x if x is None else tuple(x.shape) for x in (query, key, mask, bias)
        )
        return (
            _attend_in_jax if _cudnn_fits(dtype, num_heads, *shapes) else None
        )
    return None


def _attend_in_torch(query, key, value, num_heads, mask, bias):
    import torch

    if mask is not None:
        # A mask of True and False would give zeros if no key is allowed.
        shift = ops.cast(ops.where(mask, 0.0, -1e9), query.dtype)
        bias = shift if bias is None else shift + ops.cast(bias, query.dtype)
    elif bias is not None:
        bias = ops.cast(bias, query.dtype)
    heads = (
        x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for x in (query, key, value)
    )
    if _products_are_faster(query):
        x = _attend_by_products_in_torch(*heads, bias)
    else:
        x = torch.nn.functional.scaled_dot_product_attention(*heads, bias)
    return x.transpose(1, 2).flatten(2)  # From (B, K, S, D/K).


def _products_are_faster(query):
    """Measured: the fused kernel multiplies bfloat16 slowly without AMX."""
    return (
        HAS_PLAIN_BFLOAT16
        and query.device.type == "cpu"
        and keras.backend.standardize_dtype(query.dtype) == "bfloat16"
        and query.shape[1] <= MOST_TOKENS_OF_PRODUCTS
    )


def _attend_by_products_in_torch(query, key, value, bias):
    """PyTorch's softmax of bfloat16 computes in float32 and rounds once."""
    import torch

    query = query * query.shape[-1] ** -0.5
    logits = query @ key.transpose(-1, -2)  # (B, K, S, T)
    if bias is not None:
        logits = logits + bias
    return torch.softmax(logits, dim=-1) @ value  # (B, K, S, D/K)


def _attend_in_jax(query, key, value, num_heads, mask, bias):
    """Ask for cuDNN's kernel.

    JAX refuses odd numbers of tokens in training, and masks of one row for all
    queries. So there is one more token, which is told to be padding.
    """
    import jax

    lengths = query.shape[1], key.shape[1]  # S and T
    extra = [length % 2 for length in lengths]
    query_heads, key, value = (
        ops.pad(
            x.reshape(*x.shape[:2], num_heads, -1),  # (B, T, K, D/K)
            ((0, 0), (0, more), (0, 0), (0, 0)),
        )
        for x, more in ((query, extra[0]), (key, extra[1]), (value, extra[1]))
    )
    pairs = [(0, 0), (0, 0), *((0, more) for more in extra)]
    if mask is not None:
        shape = (*mask.shape[:2], *lengths)
        mask = ops.pad(ops.broadcast_to(mask, shape), pairs)
    if bias is not None:
        bias = ops.pad(ops.cast(bias, query.dtype), pairs)
    real = [
        jax.numpy.full(len(query), length, "int32") if any(extra) else None
        for length in lengths
    ]
    x = jax.nn.dot_product_attention(
        query_heads,
        key,
        value,
        bias,
        mask,
        query_seq_lengths=real[0],
        key_value_seq_lengths=real[1],
        implementation="cudnn",
    )
    return x[:, : lengths[0]].reshape(query.shape)


@functools.cache
def _cudnn_fits(dtype, num_heads, query, key, mask, bias):
    """Return whether cuDNN computes attention of these shapes and its gradient.

    It refuses some sizes of the heads, and JAX some shapes in training alone.
    With rematerialization, that is found out only after `call` of the layer.
    """
    import jax

    def attend(query, key, value, mask, bias):
        x = _attend_in_jax(query, key, value, num_heads, mask, bias)
        return x.astype("float32").sum()

    tensors = (
        shape if shape is None else jax.ShapeDtypeStruct(shape, kind)
        for shape, kind in (
            (query, dtype),
            (key, dtype),
            (key, dtype),
            (mask, "bool"),
            (bias, dtype),
        )
    )
    try:
        jax.eval_shape(jax.grad(attend, (0, 1, 2)), *tensors)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        warnings.warn(
            f"Attention of {query[1]} tokens in {num_heads} heads is computed "
            f"by two products, which is slower, because cuDNN refuses: {error}",
            stacklevel=2,
        )
        return False
    return True


@functools.cache
def _has_gpu():
    import jax

    return jax.default_backend() == "gpu"


def _has_plain_bfloat16():
    """Whether the processor multiplies bfloat16, but not whole tiles (AMX)."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    features = torch.cpu.get_capabilities()
    return bool(features.get("avx512_bf16")) and not features.get("amx_tile")


# Found once: torch.compile could not look it up within a graph.
HAS_PLAIN_BFLOAT16 = _has_plain_bfloat16()
MOST_TOKENS_OF_PRODUCTS = 800
