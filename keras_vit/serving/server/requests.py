"""From the JSON of a `predict` request to arrays, and back."""

import json
from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.serving.errors import invalid_request
from keras_vit.serving.json_tensors import from_json, is_base64, to_json
from keras_vit.serving.signatures import TensorSpec


def read_document(body: bytes) -> dict:
    """Return the JSON object of a request.

    Raises:
        ServingError: If it is not JSON, or not an object.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid_request(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise invalid_request("A request must be a JSON object")
    return document


def read_predict(
    document: dict, specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, np.ndarray], Callable]:
    """Return the inputs, and the function that writes the answer.

    Args:
        document: The request.
        specs: The inputs of the signature.

    Raises:
        ServingError: If they are not inputs of the signature.
    """
    forms = document.keys() & {"instances", "inputs"}
    if len(forms) != 1:
        raise invalid_request(
            "A request must have one of the keys 'instances' and 'inputs'"
        )
    if forms == {"inputs"}:
        return read_columns(document["inputs"], specs), write_columns
    rows = document["instances"]
    if not isinstance(rows, list) or not rows:
        raise invalid_request("'instances' must be a list with values")
    if any(map(is_object, rows)):
        for index, row in enumerate(rows):
            if not is_object(row) or row.keys() != specs.keys():
                raise invalid_request(
                    f"Item {index} of 'instances' must be an object with the "
                    f"keys {', '.join(specs)}"
                )
        rows = {name: [row[name] for row in rows] for name in specs}
    return read_columns(rows, specs), write_rows


def read_columns(
    columns, specs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """Return the inputs of the column form.

    Args:
        columns: Nested lists by name, or those of the only input.
        specs: The inputs of the signature.
    """
    if not is_object(columns) and len(specs) == 1:
        columns = dict.fromkeys(specs, columns)
    if not is_object(columns) or not columns.keys() >= specs.keys():
        raise invalid_request(
            f"The inputs must be an object with the keys {', '.join(specs)}"
        )
    arrays = {}
    for name, spec in specs.items():
        try:
            arrays[name] = from_json(columns[name], spec.dtype)
        except ValueError as error:
            raise invalid_request(f"Wrong values for {name}: {error}") from None
        if not spec.accepts(arrays[name].shape):
            raise invalid_request(
                f"Shape of tensor {name} {arrays[name].shape} is not "
                f"compatible with expected shape {spec.shape}"
            )
    return arrays


def is_object(value) -> bool:
    """Return whether a JSON value holds named inputs, and is not bytes."""
    return isinstance(value, dict) and not is_base64(value)


def write_columns(outputs: Mapping[str, np.ndarray]) -> dict:
    """Return the answer to a request in the column form."""
    columns = {name: write_output(name, x) for name, x in outputs.items()}
    return {"outputs": columns if len(columns) > 1 else [*columns.values()][0]}


def write_rows(outputs: Mapping[str, np.ndarray]) -> dict:
    """Return the answer to a request in the row form.

    Raises:
        ServingError: If the outputs have no rows, or different numbers of them.
    """
    lengths = {x.shape[:1] for x in outputs.values()}
    if len(lengths) != 1 or () in lengths:
        shapes = {name: x.shape for name, x in outputs.items()}
        raise invalid_request(
            f"The outputs are not rows; use 'inputs': {shapes}"
        )
    columns = [write_output(name, x) for name, x in outputs.items()]
    rows = [dict(zip(outputs, row)) for row in zip(*columns)]
    return {"predictions": rows if len(outputs) > 1 else columns[0]}


def write_output(name: str, array: np.ndarray):
    """Return an output as nested lists.

    A float32 becomes the shortest number that reads as the same float32.

    Raises:
        ServingError: If JSON has no numbers of its dtype.

    Example:
        >>> write_output("x", np.array([0.1, np.nan], "float32"))
        [0.1, nan]
    """
    if array.dtype == object and not name.endswith("_bytes"):
        decode = np.frompyfunc(
            lambda text: text.decode("utf-8", "surrogateescape"), 1, 1
        )
        return np.array(decode(array), object).tolist()
    if array.dtype.kind not in "Obiuf":
        kind = array.dtype.name
        raise invalid_request(f"JSON has no numbers of type {kind} for {name}")
    if array.dtype == "float32":
        array = array.astype("U").astype("float64")
    return to_json(array)
