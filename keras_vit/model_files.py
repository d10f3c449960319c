"""Files of models: of Keras, of a run of the trainers, of other libraries.

`open_model` opens any of them. The rest reads and writes what stands beside a
model: the classes in the recipe.json of a run, or in a config.json.
"""

import contextlib
import os
import pathlib
import reprlib
from collections.abc import Iterator, Sequence

import keras

from keras_vit.errors import first_line, is_out_of_memory
from keras_vit.models import DensePredictor, VisionTransformer
from keras_vit.weights.containers import is_of_folder, read_json, write_json
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.family import find_class_names
from keras_vit.weights.read import from_checkpoint

RUN_RECIPE = "recipe.json"
RUN_MODEL = "model.keras"


def is_run(source: str) -> bool:
    """Return whether a path is the folder of a run of the trainers."""
    return os.path.isfile(os.path.join(source, RUN_RECIPE))


def find_model(source: str) -> str:
    """Return the model file in the folder of a run; otherwise `source` itself.

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


def open_model(
    source: str,
    *,
    image_size: tuple[int, int] | int | None = None,
    kinds: tuple[type, ...] = (VisionTransformer,),
    **hints,
) -> VisionTransformer | DensePredictor:
    """Return the model of a `.keras` file or a checkpoint of any family.

    Args:
        source: See `keras_vit.convert.convert`.
        image_size: See `keras_vit.convert.convert`.
        kinds: What the model of a `.keras` file may be.
        **hints: See `keras_vit.convert.convert`.

    Raises:
        ValueError: If the source cannot be read or contains another model, or
            if it is a `.keras` file and its properties are passed.
    """
    if not source.endswith(".keras"):
        return from_checkpoint(source, image_size=image_size, **hints)
    for name, value in hints.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out for a .keras file, which states it "
                f"itself. Received: {name}={value!r}, source={source!r}"
            )
    model = load_keras(source)
    if not isinstance(model, kinds):
        raise ValueError(
            f"{source} holds no VisionTransformer but a {type(model).__name__}."
        )
    return model if image_size is None else model.with_image_size(image_size)


def load_keras(path: str) -> keras.Model:
    """Return the model of a `.keras` file, without its optimizer.

    Args:
        path: The file, also in a bucket that Keras can read from.

    Raises:
        ValueError: If the file is damaged or invalid.
        OSError: If the file does not exist or cannot be accessed.
    """
    if "://" not in path:  # Keras calls every file that it cannot open missing.
        with open(path, "rb"):
            pass
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:
        # After the first line, the message contains the whole configuration.
        reason = first_line(error)
        if reason.startswith("File not found"):  # Not an archive.
            reason = "it is not a complete .keras file"
        raise ValueError(f"{path} cannot be read: {reason}") from error


@contextlib.contextmanager
def enough_memory(
    image_size: tuple[int, int] | int | None = None,
) -> Iterator[None]:
    """Say in errors of full memory what it is not enough for.

    Raises:
        MemoryError: If the memory is full.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        cause = "this model"
        if image_size is not None:
            cause = f"a model with image_size={image_size!r}"
        raise MemoryError(
            f"The memory is not enough for {cause}: {first_line(error)}"
        ) from error


def known_classes(model: keras.Model) -> list[str] | None:
    """Return the class names that a model itself knows, None for others.

    That of a run does, that of `keras_vit.zero_shot`, and one with an answer
    for each pixel.
    """
    parts = (getattr(model, name, None) for name in ("config", "head"))
    names = [getattr(part, "class_names", None) for part in parts]
    return next((list(found) for found in names if found), None)


def write_class_names(folder: str, layout: str, names: Sequence[str]):
    """Write the names of the classes into the config.json of a folder.

    Args:
        folder: What `save_checkpoint` wrote; a file has no such names.
        layout: Its layout, a key of LAYOUTS.
        names: The names in the order of the logits; none are not written.
    """
    path = pathlib.Path(folder).expanduser() / "config.json"
    if not names or not path.is_file():
        return
    entries = LAYOUTS[layout].class_entries(names)
    if entries is not None:
        write_json(path, {**read_json(path), **entries})


def stated_class_names(
    folder: str | os.PathLike, num_classes: int
) -> list[str] | None:
    """Return the names of the classes in the config.json of a folder.

    Args:
        folder: The folder of a checkpoint, or the file in it.
        num_classes: Number of classes of its model.

    Returns:
        The names in the order of the logits; None if the file names none, or
        not as many.
    """
    path = pathlib.Path(folder).expanduser()
    if path.is_file() and is_of_folder(path):
        path = path.parent
    path /= "config.json"
    content = read_json(path) if path.is_file() else {}
    return find_class_names(content, num_classes)
