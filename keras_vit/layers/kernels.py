"""Calls and gradients of the parts of a layer, for each backend."""

import contextvars
import functools
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_vit.layers.onednn_product import find_onednn_product

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


def call_layer(layer: keras.layers.Layer, x, *tensors, **arguments):
    """Return layer(x, ...), called from within another layer or model.

    Eager PyTorch waits for Python: each `__call__` of Keras takes about 0.1 ms
    of a processor, and ViT-S/16 has 175 layers. The checks and conversions in
    it have been done for the outer layer, so only `call` remains.

    Shapes:
        x: any, a tensor in the compute type of the outer layer.

    Args:
        layer: A built sublayer.
        x: Its input.
        *tensors: Further inputs.
        **arguments: Its other arguments.
    """
    return find_call(layer, x)(x, *tensors, **arguments)


def find_call(layer: keras.layers.Layer, x) -> Callable:
    """Return the function that `call_layer` calls: `layer`, or its `call`.

    Args:
        layer: A built sublayer.
        x: Its input, or a tensor of the same kind.
    """
    return layer.call if _is_prepared(layer, x) else layer


def project(dense: keras.layers.Dense, x):
    """Return dense(x), the bias added within the product if it can be.

    Shapes:
        x: (rows, inputs). returns: (rows, units).

    Args:
        dense: A built sublayer without activation.
        x: Its input.
    """
    if not _is_prepared(dense, x):
        return dense(x)
    kernel = dense.kernel  # With the LoRA update, if there is one.
    kernel = getattr(kernel, "value", kernel).to(x.dtype)
    bias = dense.bias
    bias = None if bias is None else bias.value.to(x.dtype)
    multiply = find_onednn_product(x, kernel)
    if multiply:
        return multiply(bias, x, kernel)
    if bias is None:
        return x @ kernel
    import torch

    return torch.addmm(bias, x, kernel)


def is_free_to_change(dense: keras.layers.Dense, x) -> bool:
    """Return whether the result of `project(dense, x)` may be overwritten.

    It may in inference with PyTorch: no gradient and no hook needs it.

    Args:
        dense: A built sublayer.
        x: Its input.
    """
    if not _is_prepared(dense, x):
        return False
    import torch

    return not torch.is_grad_enabled()


def reshape(x, shape: tuple):
    """Return ops.reshape(x, shape).

    In eager PyTorch, Keras' own takes longer than all else in its call: it
    looks for symbolic tensors in `shape`.

    Shapes:
        x: any. returns: `shape`.

    Args:
        x: A tensor.
        shape: The new shape; one of its sizes may be -1.
    """
    if keras.backend.backend() == "torch" and ops.is_tensor(x):
        return x.reshape(shape)
    return ops.reshape(x, shape)


def pad(x, widths):
    """Return ops.pad(x, widths): zeros around a tensor.

    In PyTorch, each call of Keras' own makes an operation with a new name,
    for which `torch.compile` would compile the model again.

    Shapes:
        x: any. returns: each axis longer by the sum of its pair.

    Args:
        x: A tensor or a variable.
        widths: For each axis, the numbers of zeros before and after.
    """
    if keras.backend.backend() != "torch" or isinstance(x, keras.KerasTensor):
        return ops.pad(x, widths)
    import torch

    # PyTorch begins with the last axis.
    flat = [width for pair in reversed(widths) for width in pair]
    return torch.nn.functional.pad(ops.convert_to_tensor(x), flat)


def graph_constant(array: np.ndarray, dtype: str):
    """Return a constant for a layer to store: an array, in PyTorch a tensor.

    `torch.compile` cannot compile Keras' conversion of arrays. The graphs of
    the other backends take them as constants.

    Shapes:
        array: any. returns: the same.

    Args:
        array: The numbers.
        dtype: The type of the tensor.
    """
    if keras.backend.backend() == "torch":
        return ops.convert_to_tensor(array, dtype)
    return array.astype(dtype)


def _is_prepared(layer, x):
    """Return whether `layer.call(x)` does all that `layer(x)` would."""
    if keras.backend.backend() != "torch":
        return False
    return (
        ops.is_tensor(x)  # And not a symbolic one.
        and keras.backend.standardize_dtype(x.dtype) == layer.compute_dtype
        and layer.quantization_mode is None
        and layer.activity_regularizer is None
        # Hooks, which users register to inspect a layer.
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer._backward_hooks or layer._backward_pre_hooks)
    )


# More draws than a layer makes in a call, so that no two calls share a draw.
DRAWS_OF_A_CALL = 64


_IS_REMATERIALIZING = contextvars.ContextVar("rematerializing", default=False)


def is_rematerializing() -> bool:
    """Return whether the code runs inside of `rematerialize`."""
    return _IS_REMATERIALIZING.get()


def rematerialize(layer: keras.layers.Layer, call: Callable, *tensors):
    """Return `call(*tensors)` without keeping its intermediate tensors.

    The backward pass computes these tensors again. Keras' own RematScope fails
    on TensorFlow, and a Dropout inside `tf.recompute_grad` would drop other
    units in the second pass. Here, the weights are arguments of the function
    that runs twice, and the random seeds are drawn outside of it.

    Args:
        layer: The layer whose weights and seeds `call` uses. It must not
            change any other state, as BatchNormalization does.
        call: Maps tensors to a tensor. It may be the `call` of `layer`, if
            that method checks `is_rematerializing`.
        *tensors: The arguments of `call`: all that gradients flow to, beside
            the weights.
    """
    weights, constants = [], []
    for variable in layer.variables:
        if variable.name == "seed_generator_state":
            constants.append((variable, advance_seed(variable)))
        elif "float" in variable.dtype:
            weights.append(variable)
        else:  # An int8 kernel of a quantised layer has no gradient.
            constants.append((variable, variable.value))

    def pure(*values):
        inputs, values = values[: len(tensors)], values[len(tensors) :]
        mapping = [*zip(weights, values), *constants]
        with keras.StatelessScope(state_mapping=mapping):
            token = _IS_REMATERIALIZING.set(True)
            try:
                return call(*inputs)
            finally:
                _IS_REMATERIALIZING.reset(token)

    values = [ops.convert_to_tensor(weight.value) for weight in weights]
    return keras.remat(pure)(*tensors, *values)


def advance_seed(seed):
    """Return the state of a seed generator and advance it past this call."""
    state = ops.copy(seed.value)
    # The state is (key, count), and each draw adds one to the count.
    step = ops.convert_to_tensor([0, DRAWS_OF_A_CALL], dtype=seed.dtype)
    seed.assign(state + step)
    return state
