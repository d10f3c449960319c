"""Dtypes: policies of layers that contain others, and float32 arrays."""

import keras
import numpy as np
from keras import ops
from keras.dtype_policies import DTypePolicyMap


def nested_dtype_policy(layer):
    """Return the `dtype` entry of the config of a composite layer.

    `model.quantize(...)` gives each innermost layer its own policy. If the
    config of the composite layer did not contain these policies, reloading
    would create float kernels where the file has int8 kernels. So the config
    contains a map from the path of each quantised sublayer to its policy, or
    the plain policy if no sublayer is quantised.

    Args:
        layer: The composite layer.

    Returns:
        A serialisable configuration for the argument `dtype` of the layer.
    """
    default = layer.dtype_policy
    if isinstance(default, DTypePolicyMap):
        default = default.default_policy
    quantized = {
        inner.path: _own_policy(inner)
        for inner in layer._flatten_layers(include_self=False)
        if inner.quantization_mode is not None
    }
    policy = DTypePolicyMap(default.name, quantized) if quantized else default
    return keras.dtype_policies.serialize(policy)


def sublayer_policy(layer, name: str):
    """Return the dtype policy of the sublayer `name` of a built layer.

    Returns the entry of the sublayer instead of the whole map: a Dense layer
    with a map cannot be saved again, because Keras 3.15 reads the mode of the
    map's default policy.
    """
    return policy_at(layer.dtype_policy, f"{layer.path}/{name}")


def as_floats(x):
    """Return a tensor of whole numbers as float32, and others as they are.

    Shapes:
        x: any. returns: the same.

    Args:
        x: An array or tensor.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    return x if keras.backend.is_float_dtype(dtype) else ops.cast(x, "float32")


def policy_at(policy, path: str):
    """Return the entry of `policy` for the layer at `path`."""
    return policy[path] if isinstance(policy, DTypePolicyMap) else policy


def float32_unless_quantized(policy, path: str):
    """Return "float32", or the policy of a quantised layer at `path`.

    Under mixed precision, the logits are float32, so the softmax of a loss or
    of a serving client has full precision. A quantised head keeps its entry
    in the map.
    """
    policy = policy_at(policy, path)
    quantized = getattr(policy, "quantization_mode", None) is not None
    return policy if quantized else "float32"


def is_quantized(model) -> bool:
    """Return whether any layer of `model` was quantised by Keras."""
    return any(layer.quantization_mode for layer in model._flatten_layers())


def as_float32(x) -> np.ndarray:
    """Return a tensor of any floating type as a float32 array."""
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def _own_policy(layer):
    policy = layer.dtype_policy
    if isinstance(policy, DTypePolicyMap):
        return policy[layer.path]
    return policy
