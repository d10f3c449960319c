"""Limits that are checked before the arrays of a checkpoint are read.

Files are not trusted. Their names, types and shapes are read and checked
first, because they determine how much memory is allocated later.
"""

from collections.abc import Iterable

# Arrays may expand to this multiple of the file size, plus an allowance for
# small files. Trained float weights can hardly be compressed.
EXPANSION = 16
ALLOWANCE = 2**28
MAX_ENTRIES = 100_000
MAX_RANK = 8
MAX_NAME = 1000


def check_budget(sizes: Iterable[int], file_size: int):
    """Raise a ValueError if arrays of `sizes` bytes cannot be in the file.

    Args:
        sizes: Sizes of the decompressed arrays, in bytes.
        file_size: Size of the file, in bytes.
    """
    total, limit = 0, ALLOWANCE + EXPANSION * file_size
    for count, size in enumerate(sizes, start=1):
        total += size
        if total > limit:
            raise ValueError(
                f"a file of {file_size:,} bytes that expands to more than "
                f"{limit:,} bytes is not a checkpoint"
            )
        check_count(count)


def check_count(count: int, what: str = "arrays"):
    """Raise a ValueError if a file contains more arrays than a model can.

    Args:
        count: Number of arrays.
        what: Name of the counted things, for the error.
    """
    if count > MAX_ENTRIES:
        raise ValueError(f"it holds more than {MAX_ENTRIES:,} {what}")


def check_array_name(name: str) -> str:
    """Return the name of an array, or raise a ValueError if it is too long."""
    if len(name) > MAX_NAME:
        raise ValueError(
            f"the name {name[:80]}... has {len(name):,} characters; "
            f"{MAX_NAME:,} are allowed"
        )
    return name


def check_array_shape(name: str, shape) -> tuple[int, ...]:
    """Return `shape` as a tuple of ints, or raise a ValueError.

    Args:
        name: Name of the array, for the error.
        shape: Shape in the file.
    """
    good = isinstance(shape, (list, tuple)) and len(shape) <= MAX_RANK
    if not good or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{name} has no valid shape: {str(shape)[:80]}")
    return tuple(shape)
