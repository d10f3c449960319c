"""Check that the disk has room for the files of a run, before it starts."""

import errno
import os

from keras_vit.files import DRAFT
from trainers.paths import Path, RemotePath
from trainers.runs.summaries import scale

# Errors which mean that a file of this size cannot be written.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_space(folder: Path, num_bytes: int):
    """Raise an OSError unless `num_bytes` can be written to `folder`.

    Allocates a file of this size and removes it. Unlike the free space of the
    disk, this also respects quotas and limits. Does nothing for a bucket, or
    if the file system does not support allocation.

    Args:
        folder: The existing folder of a run.
        num_bytes: Size of the files to write.
    """
    if isinstance(folder, RemotePath) or not hasattr(os, "posix_fallocate"):
        return
    draft = folder / f"{DRAFT}space"
    try:
        with open(draft, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise OSError(
                f"`run_dir` must have room for {scale(num_bytes)}B of "
                "checkpoints and the model; free some space or choose another "
                f"folder. Received: run_dir={str(folder)!r} ({error.strerror})"
            ) from None
    finally:
        draft.unlink(missing_ok=True)
