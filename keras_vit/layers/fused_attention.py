"""Faster attention of the backends, most of it by fused kernels.

A fused kernel never holds the scores of all heads.
"""

import functools

import keras
from keras import ops


def find_fused_attention(query, mask=None):
    """Return the fused attention of this backend for `query`, or None.

    `keras.config.disable_flash_attention()` turns all of them off. Keras' own
    `ops.dot_product_attention` is not used: on a TPU, Keras 3.15 makes its
    attention causal if there is no mask.

    Shapes:
        query: (B, S, D).

    Args:
        query: The queries, whose type decides.
        mask: The mask of the attention, None for none.

    Returns:
        A function of query (B, S, D), key and value (B, T, D), the number K
        of heads, mask (B, 1, 1 or S, T), True where a key may be attended to,
        and bias (1, K, S, T), the last two or None. It returns (B, S, D).
    """
    if keras.config.is_flash_attention_enabled() is False:
        return None
    dtype = keras.backend.standardize_dtype(query.dtype)
    if keras.backend.backend() == "torch":
        # In float16, no number is so low that a product added to it is lost.
        is_lost = mask is not None and dtype == "float16"
        return None if is_lost else _attend_in_torch
    if keras.backend.backend() == "jax" and _has_cudnn():
        # On other devices, XLA compiles our own products to faster code.
        return None if dtype == "float32" else _attend_in_jax
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
    import jax

    attention = functools.partial(
        jax.nn.dot_product_attention,
        *(
            x.reshape(*x.shape[:2], num_heads, -1)  # (B, T, K, D/K)
            for x in (query, key, value)
        ),
        bias,
        mask,
    )
    try:
        x = attention(implementation="cudnn")
    except (NotImplementedError, RuntimeError, ValueError):
        # cuDNN has no kernel for such a size of the heads, or for this GPU.
        x = attention(implementation="xla")
    return x.reshape(query.shape)


@functools.cache
def _has_cudnn():
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
