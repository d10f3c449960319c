"""The folder of a run of the trainers, as other commands read it."""

import os
import pathlib
import reprlib

from keras_vit.weights.containers.descriptions import read_json

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


def check_class_names(names, num_classes: int | None = None) -> list[str]:
    """Return the class names of a recipe.json, which a person may have edited.

    Args:
        names: The entry `class_names`.
        num_classes: Number of logits of the model; None if it is not known.

    Raises:
        ValueError: If it is no list of strings, or not one for each logit.
    """
    is_list = isinstance(names, list)
    if is_list and all(isinstance(name, str) for name in names):
        if num_classes in (None, len(names)):
            return names
    count = "" if num_classes is None else f"{num_classes} "
    size = f"a list of {len(names)}: " if is_list else ""
    raise ValueError(
        f"`class_names` must be a list of {count}strings, one for each logit "
        f"of the model. Received: {size}{reprlib.repr(names)}"
    )


def read_classes(path: str, num_classes: int) -> list[str]:
    """Return the class names of the run that a model file belongs to.

    Args:
        path: The model file.
        num_classes: Number of logits of the model.

    Returns:
        The names in the order of the logits; none if the file is of no run.

    Raises:
        ValueError: If recipe.json is not as a run writes it.
    """
    recipe = pathlib.Path(path).with_name(RUN_RECIPE)
    if os.path.basename(path) != RUN_MODEL or not recipe.is_file():
        return []
    content = read_json(recipe)
    try:
        return check_class_names(content.get("class_names"), num_classes)
    except ValueError as error:
        raise ValueError(f"{recipe}: {error}") from None
