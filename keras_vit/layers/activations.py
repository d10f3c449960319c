"""ACTIVATIONS: the nonlinear functions of an MLP."""

import functools
import math

import keras
from keras import ops

from keras_vit.layers.fusion import can_fuse, fuse


def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    return ops.gelu(x, approximate=True)


def gelu_exact(x):
    """0.5 x (1 + erf(x / sqrt(2)))."""
    return ops.gelu(x, approximate=False)


def gelu_quick(x):
    """Return x sigmoid(1.702 x), the GELU of OpenAI's CLIP."""
    return ops.multiply(x, ops.sigmoid(1.702 * x))


def gelu_in_place(x, approximate: str = "none"):
    """Return GELU(x) in the memory of `x`, in PyTorch.

    So the system need not find new memory for the result, which is the largest
    tensor of a block.

    Args:
        x: A tensor of PyTorch that nobody else reads.
        approximate: "tanh" or "none".
    """
    import torch

    return torch.ops.aten.gelu_(x, approximate=approximate)


def silu(x):
    """Return x sigmoid(x)."""
    return ops.silu(x)


def relu(x):
    """max(x, 0)."""
    return ops.relu(x)


def elu(x):
    """Return x if x > 0, else exp(x) - 1."""
    return ops.elu(x)


@ops.custom_gradient
def gelu_tanh_written_out(x):
    """Compute `gelu_tanh` with an explicit gradient, for TensorFlow.

    TensorFlow's own gradient needs more passes over memory and keeps more
    tensors. It also sums the gradients of the three uses of `x` in an order
    that depends on when buffers become free, so runs can differ by rounding.
    """
    linear = math.sqrt(2 / math.pi)
    cubic = 0.044715 * linear
    gate = 0.5 + 0.5 * ops.tanh(x * (linear + cubic * ops.square(x)))
    y = x * gate

    def gradient(*upstream):
        # Computing the square again is as fast as keeping it.
        slope = 2 * linear + 6 * cubic * ops.square(x)
        return upstream[0] * (gate + y * (1 - gate) * slope)

    return y, gradient


# "tanh" is the GELU of the official code, "exact" that of timm and Hugging
# Face.
ACTIVATIONS = {
    "tanh": gelu_tanh,
    "exact": gelu_exact,
    "quick": gelu_quick,
    "silu": silu,
    "relu": relu,
    "elu": elu,
}
# Activations that overwrite their input, in PyTorch.
IN_PLACE_ACTIVATIONS = {
    **ACTIVATIONS,
    "tanh": functools.partial(gelu_in_place, approximate="tanh"),
    "exact": gelu_in_place,
}
# Activations that are one operation, which `fuse` would not improve.
SINGLE_OPERATIONS = frozenset({"relu"})
# Activations for training where `fuse` is not used. PyTorch has its own fused
# gradients; JAX uses `fuse` for all but SINGLE_OPERATIONS.
TRAINED_ACTIVATIONS = (
    {**ACTIVATIONS, "tanh": gelu_tanh_written_out}
    if keras.backend.backend() == "tensorflow"
    else ACTIVATIONS
)


def activate_in_training(name: str, x):
    """Return an activation whose gradient will be computed.

    Shapes:
        x: any. returns: the same.

    Args:
        name: A key of ACTIVATIONS.
        x: A tensor.
    """
    if name not in SINGLE_OPERATIONS and can_fuse(x):
        return fuse(_in_float32, activation=ACTIVATIONS[name])(x)
    return TRAINED_ACTIVATIONS[name](x)


def _in_float32(x, *, activation):
    """XLA rounds bfloat16 after each operation, which takes time."""
    return ops.cast(activation(ops.cast(x, "float32")), x.dtype)
