"""Arrays as nested lists in JSON, for the client and for the small server."""

import base64
import itertools
import reprlib

import numpy as np


def to_json(array: np.ndarray) -> list:
    """Convert an array to nested lists for JSON.

    Bytes become {"b64": ...}; the server would treat plain base64 as text.

    Example:
        >>> to_json(np.array([[0.5, 2]])), to_json(np.array([b"a"], object))
        ([[0.5, 2.0]], [{'b64': 'YQ=='}])
    """
    if array.dtype == object:
        encode = np.frompyfunc(
            lambda text: {"b64": base64.b64encode(text).decode("ascii")}, 1, 1
        )
        return np.array(encode(array), object).tolist()
    return array.tolist()


def from_json(value, dtype: str) -> np.ndarray:
    r"""Convert nested lists to an array.

    Args:
        value: A JSON value. A string stands for its UTF-8 text.
        dtype: NumPy's name, or "string".

    Raises:
        ValueError: If the lists are ragged, or hold values of another type.

    Example:
        >>> from_json(["a", {"b64": "/w"}], "string")
        array([b'a', b'\xff'], dtype=object)
    """
    shape, leaves = [], [value]
    while set(map(type, leaves)) == {list}:
        lengths = set(map(len, leaves))
        if len(lengths) > 1:
            raise ValueError(
                f"a list has {min(lengths)} to {max(lengths)} items"
            )
        shape += lengths
        leaves = list(itertools.chain.from_iterable(leaves))
    types = LEAF_TYPES.get(dtype, ())
    for leaf in leaves:
        if type(leaf) not in types:
            raise ValueError(f"{reprlib.repr(leaf)} is not of type {dtype}")
    if dtype == "string":
        return np.array([*map(_to_bytes, leaves)], object).reshape(shape)
    if int in types and float not in types and leaves:
        bounds = np.iinfo(dtype)
        if min(leaves) < bounds.min or max(leaves) > bounds.max:
            raise ValueError(f"a number is out of the range of {dtype}")
    try:
        with np.errstate(over="ignore"):  # Becomes infinite.
            return np.array(leaves, dtype).reshape(shape)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _to_bytes(value):
    if isinstance(value, str):
        return value.encode("utf-8")
    if not is_base64(value):
        raise ValueError(f'{reprlib.repr(value)} is not {{"b64": TEXT}}')
    # As in TF Serving, there may be white space and no padding; and the
    # alphabet may be that of URLs.
    text = "".join(value["b64"].split()).translate(FROM_URL_ALPHABET)
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def is_base64(value) -> bool:
    """Return whether a JSON value stands for bytes."""
    return (
        isinstance(value, dict)
        and value.keys() == {"b64"}
        and isinstance(value["b64"], str)
    )


FROM_URL_ALPHABET = str.maketrans("-_", "+/")
# The Python types of JSON values, by the dtype of the tensor.
LEAF_TYPES = {
    "string": {str, dict},
    "bool": {bool},
    **dict.fromkeys(("float16", "float32", "float64"), {int, float}),
    **dict.fromkeys(("int8", "int16", "int32", "int64"), {int}),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), {int}),
}
