"""Layers in NumPy, head by head and in float64, from the formulas of papers."""

import math

import numpy as np
from scipy.special import erf, expit, softmax

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "quick": lambda x: x * expit(1.702 * x),
    "silu": lambda x: x * expit(x),
    "exact": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "tanh": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
}


class Weights:
    """The weights of a layer, by the part of their path after the layer."""

    def __init__(self, layer):
        self._values = {
            weight.path.split("/", 1)[1]: np.asarray(value, "float64")
            for weight, value in zip(layer.weights, layer.get_weights())
        }

    def __contains__(self, path):
        return path in self._values

    def __call__(self, path, default=0.0):
        """Return a weight, or `default` if there is none of that name."""
        return self._values.get(path, default)

    def dense(self, x, path):
        """Return a dense layer of `x`."""
        return x @ self(f"{path}/kernel") + self(f"{path}/bias")

    def norm(self, x, path, kind="layer", epsilon=1e-6):
        """Return a norm of `x`; without weights of the name, `x` itself."""
        if f"{path}/gamma" not in self:
            return x
        return normalize(
            x, self(f"{path}/gamma"), self(f"{path}/beta"), kind, epsilon
        )


def normalize(x, gamma, beta=0.0, kind="layer", epsilon=1e-6):
    """Return the layer norm, or the RMS norm, of the last axis."""
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
    return x * gamma + beta


def turn(x, angles, pairs):
    """Return pairs of features as complex numbers, times e^(i angle).

    Shapes: x: (B, T, E). angles: (T, E/2).
    """
    halves = x.shape[-1] // 2
    first, second = (
        (np.s_[..., :halves], np.s_[..., halves:])
        if pairs == "halves"
        else (np.s_[..., 0::2], np.s_[..., 1::2])
    )
    turned = (x[first] + 1j * x[second]) * np.exp(1j * angles)
    y = np.empty_like(x)
    y[first], y[second] = turned.real, turned.imag
    return y


def attend(query, key, value, num_heads, mask=None, bias=None):
    """Return attention and its probabilities, with masks of -infinity."""
    heads, scores = [], []
    for head, part in enumerate(
        np.split(np.arange(query.shape[-1]), num_heads)
    ):
        q, k, v = (x[..., part] for x in (query, key, value))
        logits = q @ np.swapaxes(k, 1, 2) / np.sqrt(len(part))
        if bias is not None:
            logits = logits + bias[head]
        if mask is not None:
            allowed = mask if mask.ndim == 3 else mask[:, None]
            logits = np.where(allowed, logits, -np.inf)
        scores.append(softmax(logits, axis=-1))
        heads.append(scores[-1] @ v)
    return np.concatenate(heads, axis=-1), np.stack(scores, axis=1)


def attention(
    layer, x, w=None, path="", mask=None, angles=None, bias=None, epsilon=None
):
    """Return multi-head self-attention (B, T, D), and its probabilities.

    Shapes: angles: (T, 1 or K, E/2), in radians. bias: (K, T, T).
    """
    w, epsilon = w or Weights(layer), epsilon or layer.norm_epsilon

    def norm(x, name):
        return w.norm(x, f"{path}{name}", layer.norm, epsilon)

    x = np.asarray(x, "float64")
    query, key, value = np.split(w.dense(x, f"{path}qkv"), 3, axis=-1)
    query = query + w(f"{path}query_bias")
    value = value + w(f"{path}value_bias")
    parts = np.split(np.arange(x.shape[-1]), layer.num_heads)
    placed = []
    for tensor, name in ((query, "query_norm"), (key, "key_norm")):
        if layer.qk_norm == "width":
            tensor = norm(tensor, name)
        heads = [tensor[..., part] for part in parts]
        if layer.qk_norm == "head":
            heads = [norm(head, name) for head in heads]
        if angles is not None:
            last = angles.shape[1] - 1
            heads = [
                turn(x, angles[:, min(head, last)], layer.rotary_pairs)
                for head, x in enumerate(heads)
            ]
        placed.append(np.concatenate(heads, axis=-1))
    x, scores = attend(*placed, value, layer.num_heads, mask, bias)
    return w.dense(norm(x, "inner_norm"), f"{path}out"), scores


def mlp(layer, x, w=None, path="", epsilon=None):
    """Return an MLP of the tokens, gated or not."""
    w, activate = w or Weights(layer), ACTIVATIONS[layer.activation]
    x = w.dense(np.asarray(x, "float64"), f"{path}hidden")
    if layer.is_gated:
        gate, x = np.split(x, 2, axis=-1)
        x = activate(gate) * x
    else:
        x = activate(x)
    epsilon = epsilon or layer.norm_epsilon
    x = w.norm(x, f"{path}inner_norm", layer.norm, epsilon)
    return w.dense(x, f"{path}out")


def block(layer, x, mask=None, angles=None, bias=None):
    """Return the output of a block of any kind, and its probabilities."""
    w, epsilon, scores = Weights(layer), layer.layer_norm_epsilon, []

    def add(x, branch, name):
        before = layer.norm_placement == "before"
        path = f"{name}_norm"
        y = branch(w.norm(x, path, layer.norm, epsilon) if before else x)
        y = y if before else w.norm(y, path, layer.norm, epsilon)
        return x + y * w(f"{name}_scale/scale", 1.0)

    def attend_to(x):
        y, found = attention(
            layer.attention, x, w, "attention/", mask, angles, bias
        )
        scores.append(found)
        return y

    x = add(np.asarray(x, "float64"), attend_to, "attention")
    x = add(x, lambda x: mlp(layer.mlp, x, w, "mlp/"), "mlp")
    return x, scores[0]


def pool_by_attention(layer, x, mask=None):
    """Return the pooling by a probe, with an MLP if the layer has one."""
    w, x = Weights(layer), np.asarray(x, "float64")
    probe = np.broadcast_to(w("probe"), (len(x), 1, x.shape[-1]))
    query = w.dense(probe, "query") if "query/kernel" in w else probe
    key, value = np.split(w.dense(x, "key_value"), 2, axis=-1)
    z, _ = attend(query, key, value, layer.num_heads, mask)
    z = w.dense(z[:, 0], "out")
    if "norm/gamma" not in w:
        return z
    hidden = w.norm(z, "norm", epsilon=layer.layer_norm_epsilon)
    return z + mlp(layer.mlp, hidden, w, "mlp/")


# What is added to the variance and to the deviation of a kernel, and to the
# variance in a group normalisation.
EPSILONS = {"official": (0, 1e-5, 1e-6), "timm": (1e-8, 0, 1e-5)}
EPSILONS["bit"] = (1e-10, 0, 1e-5)


def convolve(x, kernel, stride=1, epsilons="official", is_symmetric=False):
    """Standardise the kernel, pad with zeros, and convolve.

    TensorFlow's SAME padding adds less at the top and left than PyTorch's.
    """
    variance, deviation, _ = EPSILONS[epsilons]
    kernel = kernel - kernel.mean(axis=(0, 1, 2))
    spread = np.sqrt(kernel.var(axis=(0, 1, 2)) + variance) + deviation
    side, pads = len(kernel), []
    for size in x.shape[1:3]:
        total = max((-(-size // stride) - 1) * stride + side - size, 0)
        same = (total // 2, total - total // 2)
        pads.append((side // 2, side // 2) if is_symmetric else same)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), *pads, (0, 0))), (side, side), axis=(1, 2)
    )[:, ::stride, ::stride]
    return np.einsum("bhwcij,ijcd->bhwd", windows, kernel / spread)


def group_norm(x, w, path, groups=32, epsilons="official"):
    """Return the group normalisation of a map (B, h, w, C)."""
    grouped = x.reshape(*x.shape[:3], groups, -1)
    grouped = grouped - grouped.mean(axis=(1, 2, 4), keepdims=True)
    variance = (grouped**2).mean(axis=(1, 2, 4), keepdims=True)
    normed = grouped / np.sqrt(variance + EPSILONS[epsilons][2])
    return normed.reshape(x.shape) * w(f"{path}/gamma") + w(f"{path}/beta")


def residual_unit(layer, x, is_pre_activated):
    """Return a unit of the official ResNet, or of BiT."""
    w = Weights(layer)
    options = {"epsilons": layer.epsilons, "is_symmetric": is_pre_activated}

    def conv(x, name, stride=1):
        return convolve(x, w(f"{name}/kernel"), stride, **options)

    def norm(x, name):
        return group_norm(x, w, name, layer.groups, layer.epsilons)

    def relu(x):
        return np.maximum(x, 0)

    has_projection, stride = "shortcut_conv/kernel" in w, layer.stride
    if is_pre_activated:
        first = y = relu(norm(x, "norm1"))
        y = relu(norm(conv(y, "conv1"), "norm2"))
        y = relu(norm(conv(y, "conv2", stride), "norm3"))
        y = conv(y, "conv3")
        # Of the activation, not of the input.
        return y + (
            conv(first, "shortcut_conv", stride) if has_projection else x
        )
    y = relu(norm(conv(x, "conv1"), "norm1"))
    y = relu(norm(conv(y, "conv2", stride), "norm2"))
    y = norm(conv(y, "conv3"), "norm3")
    if has_projection:
        x = norm(conv(x, "shortcut_conv", stride), "shortcut_norm")
    return relu(x + y)
