"""The signatures of a served model, as the server describes them."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The type of an input or an output.

    Args:
        dtype: NumPy's name, or "string". Types without data keep
            TensorFlow's name, such as DT_RESOURCE.
        shape: The sizes, None for any size; None for any number of axes.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    def accepts(self, shape: Sequence[int]) -> bool:
        """Return whether an array of this shape fits.

        Example:
            >>> TensorSpec("float32", (None, 3)).accepts((8, 3))
            True
        """
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(m in (None, n) for m, n in zip(self.shape, shape))
        )


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a served model.

    Args:
        inputs: Types by name.
        outputs: Types by name.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


def read_signatures(signature_defs: Mapping) -> dict[str, Signature]:
    """Parse SignatureDefs in their JSON form.

    Args:
        signature_defs: SignatureDefs by name, from the REST interface or from
            `MessageToDict(..., preserving_proto_field_name=True)` of
            google.protobuf. TensorFlow's internal ones, whose names begin
            with `__`, are left out.
    """
    return {
        name: Signature(
            *(
                {key: _read_spec(x) for key, x in sorted(part.items())}
                for part in (row.get("inputs", {}), row.get("outputs", {}))
            )
        )
        for name, row in sorted(signature_defs.items())
        if not name.startswith("__")
    }


def _read_spec(info):
    shape = info.get("tensor_shape", {})
    sizes = [int(axis.get("size", 0)) for axis in shape.get("dim", ())]
    return TensorSpec(
        SIGNATURE_DTYPES.get(info["dtype"], info["dtype"]),
        None
        if shape.get("unknown_rank")
        else tuple(None if size < 0 else size for size in sizes),
    )


# By TensorFlow's names.
SIGNATURE_DTYPES = {
    "DT_FLOAT": "float32",
    "DT_DOUBLE": "float64",
    "DT_HALF": "float16",
    "DT_BFLOAT16": "bfloat16",
    "DT_UINT8": "uint8",
    "DT_UINT16": "uint16",
    "DT_UINT32": "uint32",
    "DT_UINT64": "uint64",
    "DT_INT8": "int8",
    "DT_INT16": "int16",
    "DT_INT32": "int32",
    "DT_INT64": "int64",
    "DT_BOOL": "bool",
    "DT_STRING": "string",
}
