"""The `.npz` container: a zip archive of NumPy arrays."""

import contextlib
import io
import math
import os
import pathlib
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable

import ml_dtypes
import numpy as np

from keras_vit.files import atomic_write
from keras_vit.weights.containers import limits
from keras_vit.weights.containers.checkpoint import (
    Checkpoint,
    Entry,
    refuse_text,
)
from keras_vit.weights.containers.descriptions import (
    read_own_config,
    write_own_config,
)

CHUNK_BYTES = 2**20
MAX_HEADER = 10_000
# All kinds except objects, variable-length strings and records.
PLAIN_KINDS = "biufcSUVMm"


def open_npz(path: pathlib.Path) -> Checkpoint:
    """Return the arrays of a `.npz` file, without reading them.

    Raises:
        ValueError: If a member is not an array as NumPy stores it, or the
            archive expands to more than a checkpoint can contain.
    """
    refuse_text(path)
    archive = zipfile.ZipFile(path)
    try:
        members = archive.infolist()
        file_size = os.path.getsize(path)
        limits.check_budget((m.file_size for m in members), file_size)
        entries, by_name = {}, {}
        for member in members:
            name = limits.check_array_name(member.filename.removesuffix(".npy"))
            if name in entries:
                raise ValueError(f"{name} is stored twice")
            entries[name] = _entry(archive, member, name)
            by_name[name] = member
        config = read_own_config(archive.comment)
    except BaseException:
        archive.close()
        raise

    def verify(names):
        for name in names:
            _compare_checksum(archive, by_name[name], name)

    return Checkpoint(path, entries, config, verify, archive.close)


def write_npz(
    path: str | os.PathLike,
    arrays: Iterable[tuple[str, np.ndarray]],
    config: dict,
):
    """Write named arrays as `numpy.savez` does, one after the other.

    Equal arrays give equal files. The configuration is stored in the comment
    of the archive, which other readers ignore.

    Args:
        path: The file to write.
        arrays: Names and arrays.
        config: The `Checkpoint.config` of the file when it is read.
    """
    with atomic_write(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        archive.comment = write_own_config(config).encode()
        for name, array in arrays:
            member = zipfile.ZipInfo(name + ".npy")
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(
                    stream, np.ascontiguousarray(array), allow_pickle=False
                )


def _entry(archive, member, name):
    _check_compression(member, name)
    shape, is_fortran, dtype, offset = _read_header(archive, member, name)
    order = "F" if is_fortran else "C"
    can_slice = order == "C" and member.compress_type == zipfile.ZIP_STORED

    def load(index=None):
        if can_slice:
            return _read_stored(archive, member, offset, shape, dtype, index)
        array = np.empty(shape, dtype, order)
        with archive.open(member) as stream:
            stream.read(offset)
            _fill(stream, array.reshape(-1, order=order).view(np.uint8))
        return array if index is None else array[index]

    is_bfloat16 = dtype == ml_dtypes.bfloat16
    shown = "bfloat16" if is_bfloat16 else dtype.str
    return Entry(name, shape, shown, load, can_slice)


def _check_compression(member, name):
    if member.flag_bits & 1:
        raise ValueError(f"{name} is encrypted")
    stored_size = {
        zipfile.ZIP_STORED: member.file_size,
        zipfile.ZIP_DEFLATED: member.compress_size,
    }
    # Python decompresses the other methods without a limit.
    if member.compress_size != stored_size.get(member.compress_type):
        raise ValueError(f"{name} is not stored as NumPy stores an array")


def _read_header(archive, member, name):
    """Return the shape, Fortran order, type and data offset of an array."""
    form = np.lib.format
    with archive.open(member) as stream:
        # NumPy reads a header of any length before it checks the length.
        stream = io.BytesIO(stream.read(MAX_HEADER))
    try:
        version = form.read_magic(stream)
        read = {
            (1, 0): form.read_array_header_1_0,
            (2, 0): form.read_array_header_2_0,
        }[version]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{name} is not a NumPy array: {error}") from None
    try:
        with warnings.catch_warnings():
            # NumPy warns about old notations, which are refused below.
            warnings.simplefilter("ignore")
            shape, is_fortran, dtype = read(stream)
    except Exception as error:
        raise ValueError(f"{name} has no valid header: {error}") from None
    if dtype.hasobject:
        raise ValueError(f"{name} holds pickled objects, which are not read")
    if dtype.kind not in PLAIN_KINDS or dtype.names or dtype.subdtype:
        raise ValueError(f"{name} has no valid header: its type is {dtype}")
    shape = limits.check_array_shape(name, shape)
    if dtype.str == "|V2":
        # NumPy stores bfloat16 as two bytes without a type.
        dtype = np.dtype(ml_dtypes.bfloat16)
    offset = stream.tell()
    size = offset + math.prod(shape) * dtype.itemsize
    if dtype.itemsize == 0 or size != member.file_size:
        raise ValueError(f"{name} does not have the length in its header")
    return shape, is_fortran, dtype, offset


def _read_stored(archive, member, offset, shape, dtype, index):
    """Return an array that is not compressed, or a slice of its first axis.

    Reads from the file directly: this makes one copy and does not compute the
    checksum again.
    """
    if index is not None:
        shape = shape[1:]
        offset += index * math.prod(shape) * dtype.itemsize
    array = np.empty(shape, dtype)
    with _open_stored(archive, member, offset) as file:
        _fill(file, array.reshape(-1).view(np.uint8))
    return array


@contextlib.contextmanager
def _open_stored(archive, member, offset=0):
    """Yield a file at `offset` in the data of a member not compressed."""
    with open(archive.filename, "rb", buffering=0) as file:
        file.seek(member.header_offset)
        # The directory does not contain the lengths of the name and the extra
        # field before the data.
        name, extra = struct.unpack("<26xHH", file.read(30))
        file.seek(member.header_offset + 30 + name + extra + offset)
        yield file


def _fill(file, out):
    """Read into all of `out`, an array of bytes."""
    view, done = memoryview(out), 0
    while done < len(view):
        count = file.readinto(view[done : done + 64 * CHUNK_BYTES])
        if not count:
            raise ValueError("it ends in the middle of an array")
        done += count


def _compare_checksum(archive, member, name):
    """Read a member to its end and compare the checksum.

    This pass reads small pieces and keeps none of them, so no data of a
    damaged file is used.
    """
    if member.compress_type == zipfile.ZIP_STORED:
        checksum = _checksum_stored(archive, member, name)
        if checksum != member.CRC:
            raise ValueError(f"{name} does not have the checksum in the file")
        return
    left = member.file_size
    with archive.open(member) as stream:
        while chunk := stream.read(CHUNK_BYTES):  # zipfile compares.
            left -= len(chunk)
    if left:
        raise ValueError(f"{name} is shorter than its header states")


def _checksum_stored(archive, member, name):
    """Return the checksum of a member that is not compressed.

    Faster than with zipfile, which makes copies of each piece.
    """
    checksum, left = 0, member.file_size
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with _open_stored(archive, member) as file:
        while left:
            count = file.readinto(buffer[:left])
            if not count:
                raise ValueError(f"{name} is shorter than its header states")
            checksum = zlib.crc32(buffer[:count], checksum)
            left -= count
    return checksum
