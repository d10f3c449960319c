"""Calls of sublayers, without the checks that the outer layer has done."""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_vit.layers.onednn_product import find_onednn_product


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
