"""The zip archive behind the model in a TFLite file: labels and description.

TFLite's metadata stores associated files in this way. A runtime reads only the
model before the archive.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.export.description import to_text

LABELS, DESCRIPTION = "labels.txt", "model.json"


def make_texts(
    class_names: Sequence[str] | None, description: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the content of the files that describe a TFLite file, by name.

    Args:
        class_names: See `keras_vit.export.export_tflite`.
        description: See `keras_vit.export.export_tflite`.
    """
    texts = {}
    if class_names is not None:
        texts[LABELS] = "".join(f"{name}\n" for name in class_names)
    if description is not None:
        texts[DESCRIPTION] = to_text(description)
    return texts


def append_archive(content: bytes, texts: Mapping[str, str]) -> bytes:
    """Append texts to a TFLite file, in a zip archive.

    Args:
        content: The file.
        texts: The content of each file in the archive, by its name.
    """
    if not texts:
        return content
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, text in texts.items():
            # Uncompressed, as the task libraries require; without a date, so
            # that equal models give equal files.
            archive.writestr(zipfile.ZipInfo(name), text)
    return buffer.getvalue()


def read_archive(path: str | os.PathLike) -> dict[str, Any] | None:
    """Return the description in a TFLite file, or None.

    A file with labels but without a description has only `class_names`.

    Args:
        path: The file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if DESCRIPTION in names:
                return json.loads(archive.read(DESCRIPTION))
            if LABELS in names:
                text = archive.read(LABELS).decode("utf-8")
                return {"class_names": text.splitlines()}
    except zipfile.BadZipFile:
        pass
    return None
