"""A Transformer block of any kind in NumPy, head by head, in float64.

Written from the formulas of the papers, with complex numbers for rotations.
"""

import numpy as np
from scipy.special import softmax

from tests.layers.test_mlp_block import FORMULAS


class Weights:
    """The weights of a block, by the part of their path after the block."""

    def __init__(self, block):
        self._values = {
            weight.path.split("/", 1)[1]: np.asarray(value, "float64")
            for weight, value in zip(block.weights, block.get_weights())
        }

    def __call__(self, path, default=0.0):
        """Return a weight, or `default` if there is none of that name."""
        return self._values.get(path, default)

    def dense(self, x, path):
        """Return a dense layer of `x`."""
        return x @ self(f"{path}/kernel") + self(f"{path}/bias")

    def norm(self, x, path, kind, epsilon):
        """Return a norm of `x`; without weights of the name, `x` itself."""
        if f"{path}/gamma" not in self._values:
            return x
        if kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
        return x * self(f"{path}/gamma") + self(f"{path}/beta")


def block_in_numpy(block, x, angles=None, bias=None):
    """Return the output of a block.

    Shapes:
        x: (B, T, D). angles: (T, K, E/2), in radians. bias: (K, T, T).
    """
    weights, x = Weights(block), np.asarray(x, "float64")

    def norm(x, path, kind=block.norm):
        return weights.norm(x, path, kind, block.layer_norm_epsilon)

    def add(x, branch, name):
        if block.norm_placement == "after":
            y = norm(branch(x), f"{name}_norm")
        else:
            y = branch(norm(x, f"{name}_norm"))
        return x + y * weights(f"{name}_scale/scale", 1.0)

    def attend(x):
        return attention(block.attention, x, weights, norm, angles, bias)

    def mix(x):
        x = weights.dense(x, "mlp/hidden")
        activate = FORMULAS[block.activation]
        if block.mlp.is_gated:
            gate, x = np.split(x, 2, axis=-1)
            x = activate(gate) * x
        else:
            x = activate(x)
        x = norm(x, "mlp/inner_norm", block.mlp.norm)
        return weights.dense(x, "mlp/out")

    return add(add(x, attend, "attention"), mix, "mlp")


def attention(layer, x, weights, norm, angles, bias):
    """Return multi-head attention of the tokens (B, T, D)."""
    query, key, value = np.split(weights.dense(x, "attention/qkv"), 3, axis=-1)
    query = query + weights("attention/query_bias")
    value = value + weights("attention/value_bias")
    if layer.qk_norm == "width":
        query = norm(query, "attention/query_norm", layer.norm)
        key = norm(key, "attention/key_norm", layer.norm)
    size = x.shape[-1] // layer.num_heads
    heads = []
    for head in range(layer.num_heads):
        q, k, v = (
            part[..., head * size : (head + 1) * size]
            for part in (query, key, value)
        )
        if layer.qk_norm == "head":
            q = norm(q, "attention/query_norm", layer.norm)
            k = norm(k, "attention/key_norm", layer.norm)
        if angles is not None:
            own = angles[:, min(head, angles.shape[1] - 1)]
            q, k = (turn(part, own, layer.rotary_pairs) for part in (q, k))
        logits = q @ np.swapaxes(k, 1, 2) / np.sqrt(size)
        if bias is not None:
            logits = logits + bias[head]
        heads.append(softmax(logits, axis=-1) @ v)
    x = norm(np.concatenate(heads, axis=-1), "attention/inner_norm", layer.norm)
    return weights.dense(x, "attention/out")


def turn(x, angles, pairs):
    """Return pairs of features as complex numbers, multiplied by e^(i angle).

    Shapes:
        x: (B, T, E). angles: (T, E/2).
    """
    half = x.shape[-1] // 2
    first, second = (
        (x[..., :half], x[..., half:])
        if pairs == "halves"
        else (x[..., 0::2], x[..., 1::2])
    )
    turned = (first + 1j * second) * np.exp(1j * angles)
    y = np.empty_like(x)
    if pairs == "halves":
        y[..., :half], y[..., half:] = turned.real, turned.imag
    else:
        y[..., 0::2], y[..., 1::2] = turned.real, turned.imag
    return y
