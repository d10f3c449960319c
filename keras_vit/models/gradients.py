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


def record(function: Callable, tensors: Sequence) -> tuple:
    """Run a function; return its results and a function for its gradients.

    Args:
        function: Maps a list of tensors to (a tensor, anything).
        tensors: The arguments of `function`.

    Returns:
        The two results of `function`, and a function that maps the gradient of
        a scalar by the first result to its gradients by `tensors`. It may be
        called several times.

    Example:
        >>> from keras import ops
        >>> x = [ops.convert_to_tensor([3.0, 4.0])]
        >>> squares, extra, pull_back = record(
        ...     lambda x: (ops.square(x[0]), "extra"), x
        ... )
        >>> [float(g) for g in pull_back(ops.ones_like(squares))[0]], extra
        ([6.0, 8.0], 'extra')
    """
    backend = keras.backend.backend()
    return pick(RECORDERS, backend, "KERAS_BACKEND")(function, list(tensors))


def _record_tensorflow(function, tensors):
    import tensorflow as tf

    with tf.GradientTape(True, watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        value, extra = function(tensors)
    return (
        value,
        extra,
        lambda gradient: tape.gradient(value, tensors, gradient),
    )


def _record_jax(function, tensors):
    import jax

    value, pull_back, extra = jax.vjp(function, tensors, has_aux=True)
    return value, extra, lambda gradient: pull_back(gradient)[0]


def _record_torch(function, tensors):
    import torch

    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    with torch.enable_grad():
        value, extra = function(tensors)

    def pull_back(gradient):
        return list(
            torch.autograd.grad(value, tensors, gradient, retain_graph=True)
        )

    return value, extra, pull_back


RECORDERS = {
    "tensorflow": _record_tensorflow,
    "jax": _record_jax,
    "torch": _record_torch,
}
