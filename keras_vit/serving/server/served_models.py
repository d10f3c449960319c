"""Finding the models in the folder of an export, and loading them."""

import json
import pathlib

from keras_vit.serving.server.litert import open_litert
from keras_vit.serving.server.loaded_model import LoadedModel
from keras_vit.serving.server.saved_model import load_saved_model
from keras_vit.serving.server.versions import find_versions

# The folders of an export that can be served, the preferred one first.
SERVED_FORMATS = ("saved_model", "tflite")
# The description beside a TFLite file, by which the page prepares photos.
MODEL_JSON = "model.json"


def find_models(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the folders of the models in a folder, by their names.

    Args:
        folder: An export, the folder of one of its formats, the folder of a
            model, or a run with an export.

    Raises:
        ValueError: If there is no model.
    """
    if (folder / "export").is_dir():
        folder = folder / "export"
    if find_versions(folder):
        return {folder.resolve().name: folder}
    for place in (*(folder / name for name in SERVED_FORMATS), folder):
        paths = sorted(place.glob("[!.]*"))
        if found := {path.name: path for path in paths if find_versions(path)}:
            return found
    if not folder.is_dir():
        raise ValueError(f"EXPORT_DIR must be a folder. Received: {folder}")
    parent = folder.resolve().parent
    if folder.resolve() in find_versions(parent).values():
        raise ValueError(
            "EXPORT_DIR must be the folder of a model, not of a version: "
            f"{parent}. Received: {folder}"
        )
    raise ValueError(
        "EXPORT_DIR must hold an export, as "
        f"{'|'.join(SERVED_FORMATS)}/NAME/VERSION; `keras-vit export` "
        f"writes one. Received: {folder}"
    )


def load_version(folder: pathlib.Path) -> LoadedModel:
    """Load the model in the folder of a version.

    Args:
        folder: Holds saved_model.pb or one .tflite file.

    Raises:
        ValueError: If it holds neither, or several .tflite files.
        Exception: If the model cannot be loaded.
    """
    if (folder / "saved_model.pb").exists():
        return load_saved_model(folder)
    files = sorted(folder.glob("*.tflite"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "neither"
        rule = f"{folder} must hold saved_model.pb or one .tflite file"
        raise ValueError(f"{rule}. Received: {names}")
    model = open_litert(files[0].read_bytes())
    description = folder / MODEL_JSON
    if description.exists():
        model.description = json.loads(description.read_text("utf-8"))
    return model
