"""The position similarities during training, one file for each drawing.

Paths may be local or in a bucket (gs://...). Needs TensorFlow.
"""

import io
import os
import re

import numpy as np

from keras_vit.files import DRAFT


def read_positions(
    folder: str | os.PathLike,
) -> tuple[np.ndarray, list[int]]:
    """Return the position similarities that `AttentionPictures` stored.

    Shapes:
        returns: (frames, h, w, h, w), float32; and the steps, ascending.

    Args:
        folder: The `positions_dir` of the callback.

    Raises:
        ValueError: If the folder contains no similarities.
    """
    folder = os.fspath(folder)
    gfile = import_tensorflow().io.gfile
    steps = _list_steps(folder)
    if not steps:
        raise ValueError(
            "`folder` must be the `positions_dir` of a training. "
            f"Received: folder={folder!r}"
        )
    frames = []
    for step in steps:
        with gfile.GFile(_path_of(folder, step), "rb") as file:
            frames.append(np.load(io.BytesIO(file.read())))
    return np.stack(frames).astype("float32"), steps


def write_position(folder: str, step: int, similarity: np.ndarray):
    """Store the similarity after `step` updates in a file, atomically.

    Shapes:
        similarity: (h, w, h, w).
    """
    gfile = import_tensorflow().io.gfile
    gfile.makedirs(folder)
    content = io.BytesIO()
    np.save(content, similarity.astype("float16"))
    path = _path_of(folder, step)
    draft = os.path.join(folder, DRAFT + os.path.basename(path))
    with gfile.GFile(draft, "wb") as file:
        file.write(content.getvalue())
    gfile.rename(draft, path, overwrite=True)


def drop_positions_after(folder: str, last: int):
    """Remove the files of later steps, left by an interrupted training."""
    gfile = import_tensorflow().io.gfile
    for step in _list_steps(folder):
        if step > last:
            gfile.remove(_path_of(folder, step))


def _list_steps(folder):
    gfile = import_tensorflow().io.gfile
    names = gfile.listdir(folder) if gfile.isdir(folder) else []
    found = [re.fullmatch(r"step-(\d+)\.npy", name) for name in names]
    return sorted(int(match[1]) for match in found if match)


def _path_of(folder, step):
    return os.path.join(folder, f"step-{step:08d}.npy")


def import_tensorflow():
    """Return the module of TensorFlow.

    Raises:
        ImportError: If it is missing. The message has the install command.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "Pictures for TensorBoard need TensorFlow: pip install tensorflow"
        ) from error
    return tf
