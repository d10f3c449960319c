"""Element-wise functions as one program, for training with TensorFlow.

TensorFlow computes each operation of a GELU or of a norm by itself, and each
reads and writes all tokens. XLA compiles them into one loop, and their gradient
into another. It is not used in inference, so that exports have plain
operations, nor on a GPU, where XLA may lack its libraries.
"""

import functools
from collections.abc import Callable

import keras

# With fewer features a step is short, and compiling takes longer than it saves.
LEAST_WIDTH = 128


def can_fuse(x) -> bool:
    """Return whether a training step computes functions of `x` by XLA.

    Shapes:
        x: (..., D).

    Args:
        x: A tensor.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    if (x.shape[-1] or 0) < LEAST_WIDTH or isinstance(x, keras.KerasTensor):
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
        function: Of tensors of TensorFlow; returns one tensor.
        **options: Hashable arguments of `function`.
    """
    import tensorflow as tf

    function = functools.partial(function, **options)
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

    Args:
        function: Of a tensor of TensorFlow, whose own kernel is fast.
        pull_back: Returns the gradient of the argument for the result and its
            gradient.
        **options: Hashable arguments of `function`.
    """
    import tensorflow as tf

    @tf.function(jit_compile=True, autograph=False)
    def compiled(y, upstream, dtype):
        return tf.cast(pull_back(y, upstream), dtype)

    @tf.custom_gradient
    def call(x):
        y = function(x, **options)
        return y, lambda upstream: compiled(y, upstream, x.dtype)

    return call
