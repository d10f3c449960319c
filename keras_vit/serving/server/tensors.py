"""Nested lists of JSON as arrays, with the errors of TF Serving."""

import base64
import binascii
import itertools

import numpy as np

from keras_vit.serving.server.documents import (
    PARSE_ERROR,
    TOO_BIG,
    complain,
    name_type,
    print_value,
    to_bytes,
)
from keras_vit.serving.server.refusals import Refusal, invalid

MOST_AXES = 32


def read_tensor(value, dtype: str) -> np.ndarray:
    """Return nested lists as an array.

    Args:
        value: A JSON value.
        dtype: NumPy's name, or "string".

    Raises:
        Refusal: If they are ragged or hold values of another type.
    """
    if dtype not in JSON_TYPES:
        raise Refusal(
            "UNIMPLEMENTED",
            f"Conversion of JSON Value: {print_value(value)} to type: {dtype}",
        )
    shape, leaf = [], value
    while isinstance(leaf, list) and len(shape) < MOST_AXES:
        shape.append(len(leaf))
        leaf = leaf[0] if leaf else None
    leaves = [value]
    for size in shape:
        if set(map(type, leaves)) != {list} or set(map(len, leaves)) != {size}:
            break
        leaves = list(itertools.chain.from_iterable(leaves))
    else:
        if set(map(type, leaves)) <= JSON_TYPES[dtype]:
            try:
                return to_dtype(leaves, dtype).reshape(shape)
            except OverflowError:
                pass
    check_values(value, dtype, shape, 0)
    raise invalid(f"{PARSE_ERROR}{TOO_BIG}")


def to_dtype(leaves: list, dtype: str) -> np.ndarray:
    """Return values as an array.

    Raises:
        OverflowError: If a number does not fit.
    """
    if dtype == "string":
        return np.array([to_string(leaf) for leaf in leaves], object)
    if dtype.startswith("float"):
        with np.errstate(over="ignore"):  # Becomes infinite.
            return np.array(leaves, "float64").astype(dtype)
    if dtype != "bool" and leaves:
        range_ = np.iinfo(dtype)
        if min(leaves) < range_.min or max(leaves) > range_.max:
            raise OverflowError
    return np.array(leaves, dtype)


def to_string(value) -> bytes:
    """Return the bytes of a string or of {"b64": ...}."""
    if isinstance(value, str):
        return to_bytes(value)
    if is_object(value):
        raise complain(value, "not formatted correctly for base64 data")
    text = value["b64"]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    text = "".join(text.split()).rstrip("=")  # The padding may be missing.
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("Unable to base64 decode") from None


def check_values(value, dtype: str, shape: list[int], level: int):
    """Raise the error of the first wrong value of a tensor."""
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid(
                f"JSON Value: {print_value(value)} found at incorrect level: "
                f"{level + 1} in the JSON DOM. Expected at level: {len(shape)}"
            )
        wrong = type(value) not in JSON_TYPES[dtype]
        if not wrong:
            try:
                to_dtype([value], dtype)
            except OverflowError:
                wrong = not dtype.startswith("float")
        if wrong:
            raise complain(
                value,
                f"Type: {name_type(value)} is not of expected type: "
                f"{TENSORFLOW_NAMES.get(dtype, dtype)}",
            )
        return
    if level >= len(shape):
        raise invalid(
            f"Encountered list at unexpected level: {level} expected < "
            f"{len(shape)}"
        )
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: "
            f"{level} expected size: {shape[level]}"
        )
    for each in value:
        check_values(each, dtype, shape, level + 1)


def is_object(value) -> bool:
    """Return whether a value holds named inputs, and is not bytes."""
    return isinstance(value, dict) and not (
        len(value) == 1 and isinstance(value.get("b64"), str)
    )


# The Python types of JSON values, by the dtype of the tensor.
JSON_TYPES = {
    "float32": {int, float},
    "float64": {int, float},
    "string": {str, dict},
    "bool": {bool},
} | {
    f"{sign}int{bits}": {int}
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
    if (sign, bits) != ("u", 16)
}
TENSORFLOW_NAMES = {"float32": "float", "float64": "double"}
