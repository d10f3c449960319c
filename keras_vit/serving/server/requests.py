"""The inputs in a JSON request, as TF Serving reads them.

The texts of the errors and the order of the checks are those of TF Serving's
`FillPredictRequestFromJson`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.serving.server.documents import complain, print_value
from keras_vit.serving.server.refusals import Refusal, invalid
from keras_vit.serving.server.tensors import is_object, read_tensor
from keras_vit.serving.signatures import TensorSpec


def check_signature_name(document: dict) -> str:
    """Return the signature that a request names.

    Raises:
        Refusal: If the name is not a string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise complain(
            document,
            "not formatted correctly. 'signature_name' key must be a string "
            "value.",
        )
    return name or "serving_default"


def read_inputs(
    document: dict, specs: Mapping[str, TensorSpec], max_instances: int
) -> tuple[dict[str, np.ndarray], bool]:
    """Return the inputs, and whether they are rows.

    Args:
        document: The request.
        specs: The inputs of the signature.
        max_instances: Largest number of rows.

    Raises:
        Refusal: If they are not inputs of the signature.
    """
    if "instances" in document and "inputs" in document:
        raise complain(
            document,
            "Not formatted correctly expecting only one of 'inputs' or "
            "'instances' keys to exist ",
        )
    if "instances" in document:
        rows = document["instances"]
        if not isinstance(rows, list):
            raise complain(
                document, "Expecting 'instances' to be an list/array"
            )
        if not rows:
            raise complain(document, "No values in 'instances' array")
        check_instances(len(rows), max_instances)
        return read_rows(rows, specs), True
    if "inputs" in document:
        columns = read_columns(document["inputs"], specs)
        check_instances(
            max((len(x) for x in columns.values() if x.ndim), default=0),
            max_instances,
        )
        return columns, False
    raise invalid("Missing 'inputs' or 'instances' key")


def check_instances(count: int, max_instances: int):
    """Raise a Refusal if there are more instances than allowed."""
    if count > max_instances:
        raise invalid(
            f"A request may hold {max_instances:,} instances. "
            f"Received: {count:,}"
        )


def read_columns(value, specs) -> dict[str, np.ndarray]:
    """Return the inputs of the column form."""
    if not is_object(value):
        if len(specs) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as "
                "multiple input tensors required as per tensorinfo_map"
            )
        return {n: read_tensor(value, spec.dtype) for n, spec in specs.items()}
    for name in specs:
        if name not in value:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
    return {n: read_tensor(value[n], spec.dtype) for n, spec in specs.items()}


def read_rows(rows: list, specs) -> dict[str, np.ndarray]:
    """Return the inputs of the row form."""
    if len(specs) > 1 and not isinstance(rows[0], dict):
        raise invalid(
            "instances is a plain list, but expecting list of objects as "
            "multiple input tensors required as per tensorinfo_map"
        )
    are_objects, wrong = is_object(rows[0]), None
    try:
        if are_objects:
            if all(is_object(x) and x.keys() == specs.keys() for x in rows):
                columns = {name: [x[name] for x in rows] for name in specs}
                return read_columns(columns, specs)
        elif not any(map(is_object, rows)):
            return read_columns(rows, specs)
    except Refusal as error:
        wrong = error
    # One row after the other, to find the first wrong one.
    first = {}
    for index, row in enumerate(rows):
        if is_object(row) != are_objects:
            kinds = ("value/list", "object"), ("object", "list")
            raise invalid(
                "Expecting {} but got {}".format(*kinds[are_objects])
                + f" at item {index} of input list"
            )
        check_row(index, row, specs, first)
    raise wrong


def check_row(index: int, row, specs, first: dict[str, tuple]):
    """Raise the error of a row, if it has one.

    Args:
        index: Its number.
        row: An object or a value.
        specs: The inputs of the signature.
        first: The shapes in the first row; filled by it.
    """
    are_objects = is_object(row)
    items = row if are_objects else {next(iter(specs)): row}
    for name, value in items.items():
        try:
            if name not in specs:
                raise invalid(f"JSON object: does not have named input: {name}")
            shape = read_tensor(value, specs[name].dtype).shape
            expected = first.setdefault(name, shape)
            if np.prod(shape) != np.prod(expected):
                raise invalid(
                    f"Expecting tensor size: {np.prod(expected):.0f} but got: "
                    f"{np.prod(shape):.0f}"
                )
            if shape != expected:
                raise invalid(
                    f"Expecting shape {print_shape(expected)} but got: "
                    f"{print_shape(shape)}"
                )
        except Refusal as error:
            key = f" key: {name}" if are_objects else ""
            raise invalid(
                f"Failed to process element: {index}{key} of 'instances' list. "
                f"Error: {error.code}: {error}"
            ) from None
    if are_objects and row.keys() != specs.keys():
        raise invalid(
            f"Failed to process element: {index} of 'instances' list. JSON "
            f"object: {print_value(row)} keys must be equal to: "
            f"{','.join(sorted(specs))}"
        )


def print_shape(shape: Sequence) -> str:
    """Return a shape as TF Serving prints it.

    Example:
        >>> print_shape((1, 3))
        '[1,3]'
    """
    return f"[{','.join(map(str, shape))}]"
