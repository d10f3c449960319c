"""Types of numbers: policies of layers, and what is computed in which type."""

import keras
import numpy as np
from keras import ops
from keras.dtype_policies import DTypePolicyMap


def wide(dtype) -> str:
    """Return the type in which sums of numbers of a type are computed.

    Example:
        >>> wide("bfloat16"), wide("float64")
        ('float32', 'float64')
    """
    is_double = keras.backend.standardize_dtype(dtype) == "float64"
    return "float64" if is_double else "float32"


def policy_at(policy, path: str):
    """Return the entry of `policy` for the layer at `path`."""
    return policy[path] if isinstance(policy, DTypePolicyMap) else policy


def head_policy(policy, path: str):
    """Return the policy of a layer at `path` that computes logits.

    Under mixed precision, the logits are float32, so the softmax of a loss or
    of a serving client has full precision. A quantised head keeps its entry
    in the map.
    """
    policy = policy_at(policy, path)
    if getattr(policy, "quantization_mode", None) is not None:
        return policy
    return wide(keras.dtype_policies.get(policy).compute_dtype)


def is_quantized(model) -> bool:
    """Return whether any layer of `model` was quantised by Keras."""
    return any(layer.quantization_mode for layer in model._flatten_layers())


def as_floats(x):
    """Return a tensor of whole numbers as float32, and others as they are."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return x if keras.backend.is_float_dtype(dtype) else ops.cast(x, "float32")


def as_float32(x) -> np.ndarray:
    """Return a tensor of any floating type as a float32 array."""
    return ops.convert_to_numpy(ops.cast(x, "float32"))
