"""Checks of the inputs of a request, and conversion to the declared dtypes."""

from collections.abc import Mapping

import numpy as np

from keras_vit.serving.signatures import Signature, TensorSpec
from keras_vit.tables import pick

SIGNATURE_FLOATS = ("float16", "bfloat16", "float32", "float64")


def to_arrays(
    inputs: Mapping[str, np.ndarray], signature: Signature
) -> dict[str, np.ndarray]:
    """Return the inputs as arrays of the dtypes that a signature declares.

    Raises:
        ValueError: If inputs are missing, unknown, of different lengths, or
            of another kind than the signature declares.
    """
    arrays = {
        name: to_array(value, pick(signature.inputs, name, "inputs"), name)
        for name, value in inputs.items()
    }
    if set(arrays) != set(signature.inputs):
        raise ValueError(
            f"`inputs` must hold {', '.join(signature.inputs)}. "
            f"Received: {', '.join(arrays) or 'none'}"
        )
    check_lengths(arrays)
    return arrays


def to_array(value, spec: TensorSpec, name: str) -> np.ndarray:
    """Return an input as an array of the dtype that a signature declares.

    Refuses numbers that the conversion would change, and integers for a float
    input, because pixels from 0 to 255 are not in the range of the model.

    Raises:
        ValueError: If `value` is of another type.
    """
    if spec.dtype == "string":
        encode = np.frompyfunc(lambda x: _to_bytes(x, name), 1, 1)
        return np.array(encode(np.array(value, object)), object)
    array = np.asarray(value)
    if spec.dtype in SIGNATURE_FLOATS:
        fits = array.dtype.name in SIGNATURE_FLOATS
    else:
        fits = array.dtype.kind in "biu" and np.array_equal(
            array.astype(spec.dtype), array
        )
    if array.size and not fits:
        raise ValueError(
            f"`{name}` must be {spec.dtype}; `metadata()` lists the inputs of "
            f"each signature. Received: {array.dtype.name}, such as "
            f"{array.flat[0]}"
        )
    return array.astype(spec.dtype)


def check_lengths(arrays: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows of all arrays.

    Raises:
        ValueError: If the lengths differ or there are no arrays.
    """
    lengths = {len(x) if x.ndim else 0 for x in arrays.values()}
    if len(lengths) != 1 or 0 in lengths:
        shapes = {name: x.shape for name, x in arrays.items()}
        raise ValueError(
            "`inputs` must all have the same number of rows, 1 or more. "
            f"Received: shapes {shapes}"
        )
    return lengths.pop()


def _to_bytes(value, name):
    if isinstance(value, str):
        return value.encode("utf-8")
    if not isinstance(value, bytes):
        raise ValueError(
            f"`{name}` must be bytes or text. Received: {type(value).__name__}"
        )
    return value
