"""Functions of a training step that keep less for their gradients.

A GELU or a norm is many operations. Without this module, TensorFlow computes
each by itself, and each reads and writes all tokens; here XLA compiles them
into one loop, and their gradient into another. That is not used in inference,
so that exports have plain operations, nor on a GPU, where XLA may lack its
libraries. JAX compiles everything in any case, but would keep the result of
almost each operation for the gradient: six tensors for a GELU.
"""

import functools
from collections.abc import Callable

import keras
from keras import ops

# With fewer features a step is short, and compiling takes longer than it saves.
LEAST_WIDTH = 128


def can_fuse(x) -> bool:
    """Return whether a training step uses `fuse` for functions of `x`.

    Shapes:
        x: (..., D).

    Args:
        x: A tensor.
    """
    backend = keras.backend.backend()
    if backend == "torch" or isinstance(x, keras.KerasTensor):
        return False
    if backend == "jax":
        return True
    if (x.shape[-1] or 0) < LEAST_WIDTH:
        return False
    import tensorflow as tf

    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return kinds == {"CPU"}


@functools.cache
def fuse(function: Callable, **options) -> Callable:
    """Return `function` with options, compiled by XLA, as is its gradient.

    The gradient computes the values again, so nothing but the arguments is
    kept for it.

    Args:
        function: Of tensors; returns one tensor.
        **options: Hashable arguments of `function`.
    """
    function = functools.partial(function, **options)
    if keras.backend.backend() == "jax":
        return keras.remat(function)
    import tensorflow as tf

    compiled = tf.function(function, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def pull_back(tensors, upstream):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = function(*tensors)
        return tape.gradient(y, tensors, output_gradients=upstream)

    @tf.custom_gradient
    def call(*tensors):
        return compiled(*tensors), lambda upstream: pull_back(tensors, upstream)

    return call


@functools.cache
def fuse_gradient(
    function: Callable, pull_back: Callable, **options
) -> Callable:
    """Return `function` with options and a gradient that XLA compiles.

    Nothing but the result is kept for the gradient.

    Args:
        function: Of a tensor, whose own kernel is fast.
        pull_back: Returns the gradient of the argument for the result and its
            gradient.
        **options: Hashable arguments of `function`.
    """

    def compute_gradient(y, upstream, dtype):
        return ops.cast(pull_back(y, upstream), dtype)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        compute_gradient = tf.function(
            compute_gradient, jit_compile=True, autograph=False
        )

    @ops.custom_gradient
    def call(x):
        y = function(x, **options)
        return y, lambda upstream: compute_gradient(y, upstream, x.dtype)

    return call
