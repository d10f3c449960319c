"""The folder of a run of the trainers, as other commands read it."""

import json
import os
import pathlib

RUN_RECIPE = "recipe.json"
RUN_MODEL = "model.keras"


def is_run(source: str) -> bool:
    """Return whether a path is the folder of a run of the trainers.

    Args:
        source: Path or name.
    """
    return os.path.isfile(os.path.join(source, RUN_RECIPE))


def find_model(source: str) -> str:
    """Return the model file in the folder of a run; otherwise `source` itself.

    Args:
        source: Path or name.

    Raises:
        ValueError: If the run has no model yet.
    """
    if not is_run(source):
        return source
    path = os.path.join(source, RUN_MODEL)
    if not os.path.isfile(path):
        raise ValueError(
            "`source` must be the folder of a finished run, with a "
            f"{RUN_MODEL} in it. Received: source={source!r}"
        )
    return path


def read_classes(path: str) -> list[str]:
    """Return the class names of the run that a model file belongs to.

    Args:
        path: The model file.

    Returns:
        The names in the order of the logits; none if the file is of no run.
    """
    recipe = pathlib.Path(path).with_name(RUN_RECIPE)
    if os.path.basename(path) != RUN_MODEL or not recipe.is_file():
        return []
    try:
        content = json.loads(recipe.read_text(encoding="utf-8"))
        return [str(name) for name in content["class_names"]]
    except (ValueError, KeyError, TypeError):  # It is not of a run.
        return []
