"""The `.safetensors` container, read by the library of that name."""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterable

import ml_dtypes  # noqa: F401  (Registers bfloat16 with NumPy.)
import numpy as np
import safetensors

from keras_vit.files import atomic_write
from keras_vit.weights.containers import limits
from keras_vit.weights.containers.checkpoint import (
    Checkpoint,
    Entry,
    refuse_text,
)
from keras_vit.weights.containers.descriptions import (
    MAX_JSON,
    WRITTEN_BY,
    parse_json,
    read_own_config,
    write_own_config,
)


def open_safetensors(path: pathlib.Path) -> Checkpoint:
    """Return the arrays of a `.safetensors` file, without reading them.

    The library checks that the arrays fill the file without gaps or overlaps.

    Raises:
        ValueError: If a name, type or shape is invalid.
        safetensors.SafetensorError: If the file is damaged.
    """
    refuse_text(path)
    _check_header(path)
    with contextlib.ExitStack() as stack:
        file = safetensors.safe_open(path, framework="numpy")
        stack.enter_context(file)
        names = sorted(file.keys())
        limits.check_count(len(names))
        entries = {
            limits.check_array_name(name): _entry(file, name) for name in names
        }
        own = (file.metadata() or {}).get(WRITTEN_BY, "")
        close = stack.pop_all().close
    return Checkpoint(path, entries, read_own_config(own.encode()), close=close)


def write_safetensors(
    path: str | os.PathLike,
    arrays: Iterable[tuple[str, np.ndarray]],
    shapes: dict[str, tuple[int, ...]],
    config: dict,
):
    """Write named float32 arrays as one `.safetensors` file.

    Arrays are written one after the other, and equal arrays give equal files.
    The library does neither: it takes all arrays at once, and the order of its
    metadata changes from call to call.

    Args:
        path: The file to write.
        arrays: Names and arrays, in any order.
        shapes: The shapes of the arrays, because the header is written before
            the arrays are computed.
        config: The `Checkpoint.config` of the file when it is read.
    """
    # Hugging Face requires the entry "format".
    metadata = {"format": "pt", WRITTEN_BY: write_own_config(config)}
    header, end = {"__metadata__": metadata}, 0
    for name in sorted(shapes):
        start, end = end, end + 4 * math.prod(shapes[name])
        header[name] = {
            "dtype": "F32",
            "shape": list(shapes[name]),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path) as draft, open(draft, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, array in arrays:
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(np.ascontiguousarray(array, "<f4").data)


def _check_header(path):
    """Check the header more strictly than the library.

    The library allows a header of 100 MB, and accepts a name twice.
    """
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(os.path.getsize(path) - 8, MAX_JSON):
            raise ValueError("its header is truncated or damaged")
        parse_json(file.read(length))


def _entry(file, name):
    array = file.get_slice(name)
    dtype = STORED_DTYPES.get(array.get_dtype())
    if dtype is None:
        raise ValueError(f"{name} has the unknown type {array.get_dtype()!r}")
    shape = limits.check_array_shape(name, array.get_shape())

    def load(index=None):
        return file.get_tensor(name) if index is None else array[index]

    return Entry(name, shape, dtype, load)


# Types in the file -> NumPy's notation.
STORED_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "bfloat16",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
