"""How a file is written: whole, or not at all."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def written_whole(path) -> Iterator[pathlib.Path]:
    """Give a path to write to; its file takes the place of `path` at the end.

    If anything fails, the draft is removed and `path` stays as it was.

    Args:
        path: The file to write or to replace. Its folder is made.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(
        prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent
    )
    os.close(handle)
    draft = pathlib.Path(draft)
    try:
        # mkstemp makes a file that only its owner may read.
        mask = os.umask(0)
        os.umask(mask)
        draft.chmod(0o666 & ~mask)
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
