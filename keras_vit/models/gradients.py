"""Gradients with a common interface for all backends."""

import contextlib
from collections.abc import Callable, Sequence

import keras

from keras_vit.tables import pick


def without_gradients():
    """Return a context in which no gradients are recorded."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def differentiate(function: Callable, tensors: Sequence) -> tuple:
    """Return (gradients of `function` by `tensors`, its second result).

    Args:
        function: Maps a list of tensors to (a scalar, anything).
        tensors: The arguments of `function`.

    Example:
        >>> from keras import ops
        >>> x = [ops.convert_to_tensor([3.0, 4.0])]
        >>> gradients, extra = differentiate(
        ...     lambda x: (ops.sum(ops.square(x[0])), "extra"), x
        ... )
        >>> [float(g) for g in gradients[0]], extra
        ([6.0, 8.0], 'extra')
    """
    backend = keras.backend.backend()
    return pick(GRADIENTS, backend, "KERAS_BACKEND")(function, list(tensors))


def _differentiate_tensorflow(function, tensors):
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        value, extra = function(tensors)
    return tape.gradient(value, tensors), extra


def _differentiate_jax(function, tensors):
    import jax

    return jax.grad(function, has_aux=True)(tensors)


def _differentiate_torch(function, tensors):
    import torch

    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    with torch.enable_grad():
        value, extra = function(tensors)
    return list(torch.autograd.grad(value, tensors)), extra


GRADIENTS = {
    "tensorflow": _differentiate_tensorflow,
    "jax": _differentiate_jax,
    "torch": _differentiate_torch,
}
