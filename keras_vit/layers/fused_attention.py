"""Fused kernels of the backends, which never hold the scores of all heads."""

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
    x = torch.nn.functional.scaled_dot_product_attention(
        *(
            x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for x in (query, key, value)
        ),
        bias,
    )  # (B, K, S, D/K)
    return x.transpose(1, 2).flatten(2)


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
