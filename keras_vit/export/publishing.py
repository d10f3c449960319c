"""Publishing of a version: either all of its folders appear or none.

The path of a version is `<export_dir>/<format>/<name>/<version>/`.
"""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence

from keras_vit.arguments import as_whole
from keras_vit.files import DRAFT
from keras_vit.serving.models_config import MODELS_CONFIG

# Letters that Unicode does not take apart into one of A-Z and an accent.
OTHER_LETTERS = str.maketrans(
    {
        **{"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"},
        **{"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D"},
        **{"ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ħ": "h", "Ħ": "H"},
        **{"ı": "i", "ŧ": "t", "Ŧ": "T", "ŋ": "n", "Ŋ": "N"},
    }
)


def check_destination(
    export_dir: pathlib.Path, name: str | None, version: int | None
) -> int:
    """Check that a version can be written, and return its number.

    Args:
        export_dir: See `export_model`.
        name: Name of the model on servers; None if not known yet.
        version: See `export_model`.

    Raises:
        ValueError: If the name is not allowed, or the version exists.
        OSError: If the folder cannot be written.
    """
    if name is not None:
        check_model_name(name)
    folder = next(p for p in (export_dir, *export_dir.parents) if p.exists())
    with naming_export_dir(folder):
        tempfile.TemporaryFile(dir=folder).close()
    return choose_version(export_dir, name, version)


def to_model_name(name: str) -> str:
    """Return a name that servers accept; the same one if they accept it.

    Args:
        name: Any name, such as that of a folder.

    Example:
        >>> export.publishing.to_model_name("Köln, 2. Größe")
        'Koln_2._Grosse'
    """
    pattern = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
    if name != MODELS_CONFIG and re.fullmatch(pattern, name):
        return name
    letters = unicodedata.normalize("NFKD", name).translate(OTHER_LETTERS)
    letters = letters.encode("ascii", "ignore")
    allowed = re.sub(r"[^A-Za-z0-9_.-]+", "_", letters.decode())
    allowed = allowed.strip("_.-")
    return allowed if allowed not in ("", MODELS_CONFIG) else "my_model"


def check_model_name(name: str):
    """Raise a ValueError unless servers accept the name of the model."""
    example = to_model_name(name)
    if example != name:
        raise ValueError(
            "`name` must consist of the letters A-Z and a-z, digits, '_', '-' "
            "and '.', begin with a letter, a digit or '_', and not be "
            f"{MODELS_CONFIG}. Give another one, such as name={example!r} or, "
            f"in the command, --name={example}. Received: name={name!r}"
        )


@contextlib.contextmanager
def naming_export_dir(folder: pathlib.Path):
    """Name the argument `export_dir` in errors of the operating system."""
    try:
        yield
    except OSError as error:
        raise OSError(
            "`export_dir` must be a folder that can be written. "
            f"Received: {folder}: {error.strerror}"
        ) from None


@contextlib.contextmanager
def naming_a_full_disk(export_dir: pathlib.Path):
    """Turn the errors of all libraries on a full disk into one OSError."""
    try:
        yield
    except Exception as error:  # Each library raises its own type.
        full = os.strerror(errno.ENOSPC)
        if full.lower() not in str(error).lower():
            raise
        raise OSError(
            "The disk is full, so nothing was written. Free some space, or "
            f"choose another `export_dir`. Received: {export_dir}, or the "
            f"folder for temporary files, {tempfile.gettempdir()}: {full}"
        ) from error


def choose_version(
    export_dir: pathlib.Path, name: str | None, version: int | None
) -> int:
    """Return `version`, or the first version that is free in all formats.

    Without a name, all versions are free.

    Raises:
        ValueError: If the version is below 1 or exists.
    """
    taken = {
        int(path.name)
        for path in export_dir.glob(f"*/{name}/*")
        if name and path.name.isdecimal()
    }
    if version is None:
        return max(taken, default=0) + 1
    version = as_whole(version, "version")
    if version in taken:
        raise ValueError(
            "`version` must not exist yet; nothing is overwritten. Received: "
            f"version={version}, and {name!r} in {export_dir} has the versions "
            f"{', '.join(map(str, sorted(taken)))}"
        )
    return version


@contextlib.contextmanager
def published_together(
    folders: Sequence[pathlib.Path], name: str
) -> Iterator[list[pathlib.Path]]:
    """Yield draft folders that appear as `name` in each folder on success.

    After an error, all drafts are removed. The yielded folders do not exist
    yet. Their parents have names that begin with a dot, which servers ignore.
    """
    made = {
        path
        for folder in folders
        for path in (folder, *folder.parents)
        if not path.exists()
    }
    drafts = []
    try:
        for folder in folders:
            with naming_export_dir(folder):
                folder.mkdir(parents=True, exist_ok=True)
                parent = tempfile.mkdtemp(prefix=DRAFT, dir=folder)
            drafts.append(pathlib.Path(parent, name))
        yield drafts
        _rename_all(drafts, [folder / name for folder in folders])
    finally:
        for draft in drafts:
            shutil.rmtree(draft.parent, ignore_errors=True)
        # The deepest folders come first. Folders with content are kept.
        for path in sorted(made, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()


def _rename_all(drafts, paths):
    """Rename either all drafts or none."""
    published = []
    try:
        for draft, path in zip(drafts, paths):
            try:
                os.rename(draft, path)
            except OSError as error:
                raise OSError(
                    f"{path} could not be published; perhaps another process "
                    f"has written it: {error.strerror}"
                ) from None
            published.append(path)
    except BaseException:
        for path in published:
            shutil.rmtree(path, ignore_errors=True)
        raise
