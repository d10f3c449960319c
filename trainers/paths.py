"""Paths of a run: in a folder of this machine or in a bucket."""

import contextlib
import csv
import dataclasses
import io
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_vit import files
from keras_vit.errors import first_line

gfile = tf.io.gfile


@dataclasses.dataclass(frozen=True)
class RemotePath:
    """A path in a bucket, with the methods of pathlib that the trainers use.

    TensorFlow reads and writes, so every scheme of TensorFlow works;
    `etils.epath` treats schemes that it does not know, such as hdfs://, as
    folders.

    Args:
        address: With its scheme, such as gs://bucket/runs/digits.
    """

    address: str

    def __str__(self):
        return self.address

    def __fspath__(self):
        return self.address

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.address.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.address.rstrip("/").rpartition("/")[2]

    def exists(self) -> bool:
        """Return whether there is such a file or folder."""
        with _os_errors(self):
            return gfile.exists(self.address)

    def is_file(self) -> bool:
        """Return whether there is such a file."""
        with _os_errors(self):
            return self.exists() and not gfile.isdir(self.address)

    def mkdir(self, parents: bool = False, exist_ok: bool = False):
        """Create the folder, if it does not exist."""
        with _os_errors(self):
            gfile.makedirs(self.address)

    def unlink(self, missing_ok: bool = False):
        """Remove the file."""
        with _os_errors(self):
            if self.exists() or not missing_ok:
                gfile.remove(self.address)

    def read_bytes(self) -> bytes:
        """Return the content."""
        with _os_errors(self), gfile.GFile(self.address, "rb") as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content of a text file."""
        return self.read_bytes().decode(encoding)


Path = pathlib.Path | RemotePath


def check_folder(path: Path, argument: str):
    """Raise a ValueError if the path of a folder is a file.

    Args:
        path: The path.
        argument: Name of the argument with the folder, for the error.
    """
    if isinstance(path, RemotePath):
        return
    place = _existing_part(path)
    if not place.is_dir():
        raise ValueError(
            f"`{argument}` must be a folder, or where one can be made. "
            f"Received: {argument}={str(path)!r}, {place} is a file"
        )


def check_writable(path: Path, argument: str):
    """Raise an OSError if no file can be written to a folder.

    Args:
        path: The path of the folder, which need not exist.
        argument: Name of the argument with the folder, for the error.
    """
    if isinstance(path, RemotePath):
        return
    files.check_writable(path, argument)


@contextlib.contextmanager
def naming_folder(folder: Path, argument: str) -> Iterator[None]:
    """Name a folder and its flag in errors of writing to it.

    Args:
        folder: The folder that files are written to.
        argument: Name of the argument with the folder, which is a flag, too.
    """
    try:
        yield
    except OSError as error:
        raise OSError(
            f"`{argument}` must be a folder that can be written; choose "
            f"another with --{argument}. Received: "
            f"{argument}={str(folder)!r} ({error.strerror or error})"
        ) from error


def _existing_part(path):
    path = path.absolute()
    return next(p for p in (path, *path.parents) if p.exists())


def as_path(path: str | os.PathLike) -> Path:
    """Return a path on this machine or, with a scheme, in a bucket.

    A path on this machine may begin with `~`, the home of the user.

    Raises:
        ValueError: If TensorFlow does not know the scheme.
    """
    text = os.fspath(path)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return pathlib.Path(os.path.expanduser(text))
    known = sorted(filter(None, gfile.get_registered_schemes()))
    if scheme not in known:
        raise ValueError(
            "A path must be a folder or an address that begins with one of "
            f"{', '.join(f'{name}://' for name in known)}. Received: {text!r}"
        )
    return RemotePath(text)


@contextlib.contextmanager
def draft_of(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path that replaces `path` on success.

    Like `keras_vit.files.atomic_write`, but also for paths in a bucket: a
    bucket shows a file when it was transferred completely.
    """
    path = as_path(path)
    if not isinstance(path, RemotePath):
        with files.atomic_write(path) as draft:
            yield draft
        return
    with tempfile.TemporaryDirectory() as folder:
        draft = pathlib.Path(folder, path.name)
        yield draft
        with _os_errors(path):
            gfile.copy(str(draft), str(path), overwrite=True)


@contextlib.contextmanager
def written_together(folder: Path) -> Iterator[pathlib.Path]:
    """Yield a draft folder, whose files appear in `folder` on success.

    After an error, such as that of a full disk, none of them appears.

    Args:
        folder: The folder to write to, which need not exist.
    """
    if isinstance(folder, RemotePath):
        with tempfile.TemporaryDirectory() as place:
            yield pathlib.Path(place)
            with _os_errors(folder):
                gfile.makedirs(str(folder))
                for path in pathlib.Path(place).iterdir():
                    target = str(folder / path.name)
                    gfile.copy(str(path), target, overwrite=True)
        return
    with files.draft_folder(folder / "files") as draft:
        yield draft
        for path in draft.iterdir():
            os.replace(path, folder / path.name)


def write_atomically(path: str | os.PathLike, text: str):
    """Write a text file; readers see either the old or the new content."""
    with draft_of(path) as draft:
        # The name of a file need not be UTF-8.
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")


class ContentError(ValueError):
    """A file does not contain what a command has written to it."""


def read_written(path: Path, parse: Callable[[str], Any], remedy: str) -> Any:
    """Return what a command has written to a text file.

    Others may have changed the file since.

    Args:
        path: The file.
        parse: Takes its text; returns what it stands for.
        remedy: What the user should do about a changed file, for the error.

    Raises:
        ContentError: If it is no text in UTF-8, or `parse` fails.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        fault = "it is no text in UTF-8"
    except json.JSONDecodeError as error:
        fault = f"it is no JSON: {error}"
    except KeyError as error:
        fault = f"no entry {error}"
    except TypeError:
        fault = "its entries are not those of such a file"
    except ValueError as error:
        fault = str(error)
    raise ContentError(
        f"{path} is not what was written there ({fault}); {remedy}"
    )


def parse_object(text: str) -> dict:
    """Return the object that a JSON text holds.

    Raises:
        ValueError: If it is no JSON, or holds something else.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it must hold a JSON object")
    return content


def write_csv_file(path: str | os.PathLike, rows: Iterable[Sequence]):
    """Write a CSV table; readers see either the old or the new content."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue())


@contextlib.contextmanager
def _os_errors(path):
    """Turn the errors of TensorFlow's file system into OSErrors."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(f"{path}: {first_line(error)}") from None
