"""Atomic writes: a file appears either complete or not at all."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

# Begins the names of files and folders that are not complete.
DRAFT = ".draft-"


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path that replaces `path` on success.

    The temporary file is in the same folder. After an error, it is removed and
    `path` is unchanged.

    Args:
        path: The file to write or to replace. Missing folders are created.
    """
    path = pathlib.Path(path)
    with naming_path(path):
        make_parents(path)
        handle, draft = tempfile.mkstemp(
            prefix=f"{DRAFT}{path.stem}-", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
        draft = pathlib.Path(draft)
        try:
            # mkstemp creates a file that only its owner may read.
            mask = os.umask(0)
            os.umask(mask)
            draft.chmod(0o666 & ~mask)
            yield draft
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def naming_path(path: pathlib.Path) -> Iterator[None]:
    """Name `path` in errors of the operating system that name no other file.

    A full disk is reported without a name, and a draft means nothing to users.
    """
    try:
        yield
    except OSError as error:
        is_named = error.filename and DRAFT not in str(error.filename)
        if error.errno is None or is_named:
            raise
        reason = os.strerror(error.errno)
        raise OSError(error.errno, reason, str(path)) from error


def make_parents(path: pathlib.Path):
    """Make the folders that a new file or folder is to be in.

    Raises:
        NotADirectoryError: If one of them is a file.
    """
    check_parents(path)
    path.parent.mkdir(parents=True, exist_ok=True)


def check_writable(folder: pathlib.Path, argument: str):
    """Raise an OSError if no file can be written to a folder.

    Args:
        folder: The folder, which need not exist.
        argument: Name of the argument with the folder, for the error.
    """
    folder = folder.absolute()
    there = next(x for x in (folder, *folder.parents) if x.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise OSError(
            f"`{argument}` must be a folder that can be written. "
            f"Received: {there}: {error.strerror}"
        ) from None


def check_parents(path: pathlib.Path):
    """Raise a NotADirectoryError if a file is where a folder must be."""
    there = next((place for place in path.parents if place.exists()), None)
    if there is not None and not there.is_dir():
        raise NotADirectoryError(
            f"A file can only be written to a folder, and {there} is a file. "
            f"Received: {path}"
        )


@contextlib.contextmanager
def draft_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yield a new folder that can be renamed to `path`, or files in it.

    It has the permissions of any new folder, and is in a hidden one beside
    `path`, which is removed in the end.

    Args:
        path: The file or folder to write. Missing parents are created.
    """
    path = pathlib.Path(path).absolute()
    make_parents(path)
    with (
        naming_path(path),
        tempfile.TemporaryDirectory(
            prefix=DRAFT, dir=path.parent, ignore_cleanup_errors=True
        ) as hidden,
    ):
        draft = pathlib.Path(hidden, path.name)
        draft.mkdir()
        yield draft
