"""The outputs of a signature as JSON, as TF Serving writes them."""

import base64
import json
from collections.abc import Mapping

import numpy as np

from keras_vit.serving.server.refusals import invalid


def write_answer(outputs: Mapping[str, np.ndarray], are_rows: bool) -> bytes:
    """Return the answer to a request.

    Args:
        outputs: Arrays by name; strings as object arrays of bytes.
        are_rows: Whether the request was in the row form.

    Raises:
        Refusal: If they do not fit JSON or the row form.
    """
    if are_rows:
        check_rows(outputs)
    values = {name: to_lists(name, x) for name, x in sorted(outputs.items())}
    if not are_rows:
        return dump_json(
            {"outputs": values if len(values) > 1 else [*values.values()][0]}
        )
    rows = zip(*values.values())
    return dump_json(
        {
            "predictions": [
                dict(zip(values, row)) if len(values) > 1 else row[0]
                for row in rows
            ]
        }
    )


def check_rows(outputs: Mapping[str, np.ndarray]):
    """Raise a Refusal unless all outputs have the same number of rows."""
    size = None
    for name, array in sorted(outputs.items()):
        if not array.ndim:
            raise invalid(f"Tensor name: {name} has no shape information ")
        if size not in (None, len(array)):
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: "
                f"{len(array)} expecting: {size}"
            )
        size = len(array)


def to_lists(name: str, array: np.ndarray):
    """Return an output as nested lists.

    A float32 becomes the shortest number that reads as the same float32.

    Example:
        >>> to_lists("x", np.array([0.1, np.nan], "float32"))
        [0.1, nan]
    """
    if array.dtype == object:
        write = to_base64 if name.endswith("_bytes") else decode_text
        return np.array(np.frompyfunc(write, 1, 1)(array), object).tolist()
    if array.dtype.name in ("float32", "float16"):
        return array.astype("U").astype("float64").tolist()
    if array.dtype.kind not in "biuf":
        raise invalid(
            f"Failed to write JSON value for tensor type: {array.dtype.name}"
        )
    return array.tolist()


def to_base64(content: bytes) -> dict[str, str]:
    """Return bytes as JSON, for outputs whose name ends in `_bytes`."""
    return {"b64": base64.b64encode(content).decode("ascii")}


def decode_text(content: bytes) -> str:
    """Return bytes as text; `dump_json` writes them as they are."""
    return content.decode("utf-8", "surrogateescape")


def dump_json(value) -> bytes:
    """Return JSON, with NaN and Infinity as TF Serving writes them."""
    text = json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "surrogateescape")
