"""A checkpoint: named arrays, which are read one by one, and a description.

Nothing is ever unpickled. Every fault of a file raises a ValueError that names
the file.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

ARRAY_FLOATS = ("f2", "f4", "f8", "bfloat16")
PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
WHY_NO_PICKLES = (
    "a pickle, which can run code when it is opened; load it with the library "
    "that wrote it, and save the weights as .safetensors"
)

# A byte that no text has.
CONTROL = rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]"


class Entry(NamedTuple):
    """One array of a file, described without reading it.

    Args:
        name: Name of the array in the file.
        shape: Shape of the array.
        dtype: Type in NumPy's notation, or "bfloat16".
        load: Reads the array, or one slice of its first axis.
        can_slice: Whether a slice can be read without the rest.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[int | None], np.ndarray]
    can_slice: bool = True

    @property
    def is_float(self) -> bool:
        """Whether the array can be a weight."""
        return self.dtype.lstrip("<>|=") in ARRAY_FLOATS

    def read(self, index: int | None = None) -> np.ndarray:
        """Return the array as float32, in the byte order of this machine.

        Args:
            index: Index of the slice to read; None reads the whole array.
        """
        array = self.load(index)
        with np.errstate(over="raise"):
            return np.asarray(array, "float32")


class Checkpoint:
    """The arrays of a file or folder and its description of itself.

    Args:
        path: The file or folder.
        entries: The arrays by name.
        config: The description beside the arrays or inside the file, such as
            the parsed `config.json`.
        verify: Reads the given entries once, without keeping them, and raises
            an error if one is damaged.
        close: Closes the files.
    """

    def __init__(self, path, entries, config=None, verify=None, close=None):
        self.path = str(path)
        self.entries = entries
        self.config = config or {}
        self._verify = verify
        self._close = close

    def verify(self, names: Iterable[str]):
        """Raise a ValueError unless the entries `names` can all be read."""
        with errors_name(self.path):
            if self._verify is not None:
                self._verify(names)
            for name in names:
                if self.entries[name].dtype.endswith("f8"):
                    # The values may be too large for float32.
                    self.entries[name].read()

    def read(self, name: str, index: int | None = None) -> np.ndarray:
        """Return the entry `name`, or a slice of its first axis, as float32."""
        with errors_name(self.path):
            return self.entries[name].read(index)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._close is not None:
            self._close()


@contextlib.contextmanager
def errors_name(path):
    """Turn any error raised inside into a ValueError that names `path`."""
    try:
        yield
    except Exception as error:
        message = str(error) or type(error).__name__
        if str(path) in message and isinstance(error, ValueError):
            raise
        raise ValueError(f"{path} cannot be read: {message}") from error


def refuse_text(path: str | os.PathLike, of: str = "weights"):
    """Raise a ValueError if a file is a pointer, a web page or other text.

    Args:
        path: The file.
        of: What it should be. "JSON" may be text.
    """
    with open(path, "rb") as file:
        start = file.read(400)
    if re.search(CONTROL, start):
        return
    text = start.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
    name = os.path.basename(path)
    if text.startswith("version https://git-lfs"):
        raise ValueError(
            f"{name} is a pointer of Git LFS, not the {of}: run `git lfs "
            "pull`, or download the file itself"
        )
    if text.startswith("<"):
        raise ValueError(
            f"{name} is a web page (HTML or XML), not the {of}: the download "
            f"was refused or redirected. It starts with {text[:60]!r}"
        )
    if of != "JSON" and len(text) > 8:
        raise ValueError(
            f"{name} is text, not {of}; it starts with {text[:60]!r}"
        )


def read_through(entries: dict[str, Entry]) -> Callable:
    """Return a `verify` that reads each entry and discards it.

    Args:
        entries: The arrays by name.
    """

    def verify(names):
        for name in names:
            entries[name].load(None)

    return verify
