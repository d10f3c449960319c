"""Scaled dot-product attention in several heads, without weights."""

import math

import keras
from keras import ops

from keras_vit.layers.fused_attention import find_fused_attention
from keras_vit.layers.fusion import can_fuse, fuse_gradient


def attend(
    query, key, value, *, num_heads, mask=None, bias=None, training=False
):
    """Return scaled dot-product attention in several heads.

    softmax(query key^T / sqrt(D / K) + bias) value, for each of K slices of D.
    Uses the fused kernel of the backend if there is one, else two products.

    Shapes:
        query: (B, S, D). key, value: (B, T, D).
        mask: (B, T) or (B, S, T), True where a key may be attended to. If no
            key is allowed, the attention is uniform.
        bias: (1, K, S, T).
        returns: (B, S, D).

    Args:
        query: Projected tokens that attend to the others.
        key: Projected tokens that the queries are compared with.
        value: Projected tokens that are averaged.
        num_heads: Number K of heads.
        mask: See above; None attends to all keys.
        bias: Added to the scaled products; None for none.
        training: Whether a gradient will be computed.
    """
    for_heads = mask if mask is None else _for_heads(mask)
    fused = find_fused_attention(query, key, num_heads, for_heads, bias)
    if fused is None:
        return attend_by_products(
            query,
            key,
            value,
            num_heads=num_heads,
            mask=mask,
            bias=bias,
            training=training,
        )[0]
    return fused(query, key, value, num_heads, for_heads, bias)


def attend_by_products(
    query,
    key,
    value,
    *,
    num_heads,
    mask=None,
    bias=None,
    dropout=None,
    training=False,
):
    """Return `attend(...)` and the attention probabilities.

    Shapes:
        query: (B, S, D). key, value: (B, T, D).
        returns: (B, S, D), and the attention probabilities (B, K, S, T).

    Args:
        query: Projected tokens that attend to the others.
        key: Projected tokens that the queries are compared with.
        value: Projected tokens that are averaged.
        num_heads: Number K of heads.
        mask: See `attend`.
        bias: See `attend`.
        dropout: Applied to the probabilities before they weigh the values.
            The probabilities returned are those before dropout.
        training: Whether a gradient will be computed.
    """
    width = query.shape[-1]
    query = query * (width // num_heads) ** -0.5
    query, key, value = (
        ops.transpose(_split_heads(x, num_heads), axes)
        for x, axes in (
            (query, (0, 2, 1, 3)),  # (B, K, S, D/K)
            (key, (0, 2, 3, 1)),  # (B, K, D/K, T)
            (value, (0, 2, 1, 3)),  # (B, K, T, D/K)
        )
    )
    logits = ops.matmul(query, key)  # (B, K, S, T)
    if keras.backend.standardize_dtype(query.dtype) == "float16":
        # Products above 65504 overflow to infinity, whose softmax is nan.
        logits = ops.clip(ops.cast(logits, "float32"), -65504.0, 65504.0)
    if bias is not None:
        logits = ops.cast(logits, "float32") + ops.cast(bias, "float32")
    if mask is not None:
        logits = ops.cast(logits, "float32")
        logits = ops.where(_for_heads(mask), logits, -1e9)
    scores = _softmax(logits, value.dtype, training)
    weights = scores if dropout is None else dropout(scores)
    x = ops.matmul(weights, value)  # (B, K, S, D/K)
    x = ops.transpose(x, (0, 2, 1, 3))  # (B, S, K, D/K)
    return ops.reshape(x, (-1, ops.shape(x)[1], width)), scores


def _softmax(logits, dtype, training):
    dtype = keras.backend.standardize_dtype(dtype)
    if training and can_fuse(logits):
        return fuse_gradient(_compute, _pull_back, dtype=dtype)(logits)
    return _compute(logits, dtype=dtype)


def _compute(logits, *, dtype):
    """Return the softmax, computed in float32, in another type."""
    logits = ops.cast(logits, "float32")
    return ops.cast(ops.softmax(logits, axis=-1), dtype)


def _pull_back(scores, upstream):
    """Return the gradient of the logits for the softmax and its gradient."""
    scores = ops.cast(scores, "float32")
    products = scores * ops.cast(upstream, "float32")
    mean = ops.sum(products, axis=-1, keepdims=True)
    return products - mean * scores


def projection(width: int, count: int, name: str, dtype, use_bias: bool = True):
    """Return one Dense layer that computes `count` square projections.

    Each projection is initialised Glorot-uniform by itself, with the limit of
    a (D, D) matrix. Keras would compute the limit of the fused
    (D, count * D) kernel, which is too small.
    """
    limit = math.sqrt(6 / (width + width))
    return keras.layers.Dense(
        count * width,
        use_bias=use_bias,
        kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
        dtype=dtype,
        name=name,
    )


def check_heads_divide(width: int, num_heads: int):
    """Raise a ValueError unless `num_heads` divides `width`."""
    if width % num_heads:
        raise ValueError(
            "`num_heads` must divide the width of the tokens. "
            f"Received: num_heads={num_heads}, width={width}"
        )


def _split_heads(x, num_heads):
    """Return (B, T, D) as (B, T, K, D/K)."""
    length, width = ops.shape(x)[1:]
    return ops.reshape(x, (-1, length, num_heads, width // num_heads))


def _for_heads(mask):
    """Return a mask (B, T) or (B, S, T) as (B, 1, 1 or S, T)."""
    mask = ops.cast(mask, "bool")
    return mask[:, None, None] if len(mask.shape) == 2 else mask[:, None]
