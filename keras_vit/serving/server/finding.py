"""The models in the folder of an export."""

import pathlib

from keras_vit.serving.server.versions import find_versions

# The folders of an export that can be served, the preferred one first.
SERVED_FORMATS = ("saved_model", "tflite")


def find_models(
    folder: pathlib.Path, format_name: str | None = None
) -> dict[str, pathlib.Path]:
    """Return the folders of the models in a folder, by their names.

    Args:
        folder: An export, the folder of one of its formats, the folder of a
            model, or a run with an export.
        format_name: "saved_model" or "tflite". Default: the first that the
            export has.

    Raises:
        ValueError: If there is no model.
    """
    if (folder / "export").is_dir():
        folder = folder / "export"
    formats = (format_name,) if format_name else SERVED_FORMATS
    for name in formats:
        if found := find_named(folder / name):
            return found
    if find_versions(folder):
        return {folder.resolve().name: folder}
    if found := find_named(folder):
        return found
    hint = ""
    if folder.name.isdecimal():
        hint = f" It is the folder of a version: name {folder.parent}."
    raise ValueError(
        "EXPORT_DIR must hold an export, as "
        f"{'|'.join(formats)}/NAME/VERSION.{hint} Received: {folder}"
    )


def find_named(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the folders in a folder that hold versions, by name."""
    return {
        path.name: path
        for path in sorted(folder.glob("[!.]*"))
        if find_versions(path)
    }
