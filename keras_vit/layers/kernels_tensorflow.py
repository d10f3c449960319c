"""TensorFlow: functions of a training step, compiled by XLA.

A GELU or a norm is many operations. TensorFlow computes each by itself, and
each reads and writes all tokens; XLA compiles them into one loop, and their
gradient into another. That is not used in inference, so that exports have
plain operations, nor on a GPU, where XLA may lack its libraries.
"""

import functools
import math
from collections.abc import Callable

import keras
import tensorflow as tf
from keras import ops

from keras_vit.layers.base import activate_wide

# With fewer features a step is short, and compiling takes longer than it saves.
LEAST_WIDTH = 128
name_scope = tf.name_scope  # Of errors in graphs.


def ensure_shape(images, shape: tuple):
    """Return `images`; fail at run time unless they have `shape`.

    Keras checks shapes when a layer is called, so eager calls and traces are
    safe without this check. But an exported TensorFlow graph accepts any
    input, and its reshape to (-1, h, P, ...) would turn four small images into
    one. The check is part of the graph and has no measurable cost; the TFLite
    converter removes it.
    """
    return tf.ensure_shape(images, shape)


def can_compile(x) -> bool:
    """Return whether XLA compiles functions of a tensor (..., D)."""
    if isinstance(x, keras.KerasTensor) or (x.shape[-1] or 0) < LEAST_WIDTH:
        return False
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return kinds == {"CPU"}


def fuse(function: Callable, *tensors, training, **options):
    """Return function(*tensors, **options), in training in one loop."""
    if training and can_compile(tensors[0]):
        return _compiled(function, **options)(*tensors)
    return function(*tensors, **options)


@functools.cache
def _compiled(function, **options):
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


def softmax(function: Callable, pull_back: Callable, logits, dtype):
    """Return function(logits, dtype), whose gradient is one loop."""
    if can_compile(logits):
        return _with_gradient(function, pull_back, dtype)(logits)
    return function(logits, dtype)


@functools.cache
def _with_gradient(function, pull_back, dtype):
    @tf.function(jit_compile=True, autograph=False)
    def compute_gradient(y, upstream, dtype):
        return ops.cast(pull_back(y, upstream), dtype)

    @ops.custom_gradient
    def call(x):
        y = function(x, dtype)
        return y, lambda upstream: compute_gradient(y, upstream, x.dtype)

    return call


def activate(name: str, function: Callable, x, training, overwrite=None):
    """Return the activation of a tensor."""
    if training and name != "relu" and can_compile(x):
        return _compiled(activate_wide, activation=function)(x)
    if training and name == "tanh":
        return gelu_tanh_with_gradient(x)
    # The graph computes MatMul, BiasAdd and GELU in one kernel if they have
    # rank 2, the GELU has its own gradient, and its operations have names
    # after those of `hidden` in the alphabet: it sorts the factors of a
    # product by their names before it looks for a GELU.
    with keras.name_scope("hidden_activation"):
        return function(x)


@ops.custom_gradient
def gelu_tanh_with_gradient(x):
    """Return the tanh GELU, with an explicit gradient.

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


def record(function: Callable, tensors: list) -> tuple:
    """Run a function; return its results and a function for its gradients."""
    with tf.GradientTape(True, watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        value, extra = function(tensors)
    return value, extra, lambda by: tape.gradient(value, tensors, by)
