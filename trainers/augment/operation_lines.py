"""The preprocessing of a model as a line of operations, and back."""

from keras_vit.preprocessing.description import Preprocessing
from keras_vit.preprocessing.model_inputs import RAW
from trainers.augment.augmentation import parse_augmentation
from trainers.augment.operations import BATCH_OPS, NORMALIZING
from trainers.augment.parser import read_calls


def line_of(settings: Preprocessing, image_size: tuple[int, int]) -> str:
    """Return the operations that prepare images for a model.

    With the default settings, the line is empty: the official code does not
    antialias. Nor do the functions with which Keras reads files for a model
    that scales pixels itself.

    Args:
        settings: The preprocessing of the model.
        image_size: (height, width) of the model.

    Example:
        >>> settings = Preprocessing("clip", "shortest", "bicubic", 0.875)
        >>> line_of(settings, (224, 224))
        'resize_to_cover(256, bicubic)|central_crop|normalize(clip)'
    """
    mode = settings.normalization
    if mode in ("vit", RAW) and settings == Preprocessing(mode):
        return add_normalization("", settings)
    operations = []
    for step in settings.steps(image_size):
        size = step["height"], step["width"]
        # A line has no name for other sizes than squares and the model's own.
        is_named = size[0] == size[1] and size != tuple(image_size)
        side = size[0] if is_named else None
        if "method" in step:
            operations.append(f"{step['kind']}({side}, {step['method']})")
        elif not operations[0].startswith("resize(None"):
            operations.append("central_crop")
    return add_normalization("|".join(operations), settings)


def add_normalization(line: str, settings: Preprocessing) -> str:
    """Return a line that normalises images for a model.

    Args:
        line: Operations, on batches as well.
        settings: The preprocessing of the model. A line that normalises
            images by itself does not change.
    """
    calls = read_calls(line, "augment")
    states_it = any(call.name in NORMALIZING for call in calls)
    if states_it or settings.normalization == "vit":
        return line
    mode = settings.normalization
    if mode == RAW:
        operation = "value_range(0, 255)"
    elif isinstance(mode, str):
        operation = f"normalize({mode})"
    else:
        operation = f"normalize({mode[0]}, {mode[1]})"
    operations = [text.strip() for text in line.split("|") if text.strip()]
    # Operations on batches come last.
    place = sum(call.name not in BATCH_OPS for call in calls)
    operations.insert(place, operation)
    return "|".join(operations)


def preprocessing_in(line: str, image_size: tuple[int, int]) -> Preprocessing:
    """Return the preprocessing that comes next to a line of operations.

    Its normalisation is exact. `resize_small` averages areas, for which the
    antialiased bilinear resizing stands, and other operations are left out.

    Args:
        line: The operations.
        image_size: (height, width) of the model.

    Example:
        >>> preprocessing_in("resize_small(256)|central_crop", (224, 224))
        Preprocessing(normalization='vit', resize_mode='shortest', \
interpolation='bilinear', crop_fraction=0.875)
    """
    augmentation = parse_augmentation(line, image_size)
    choices, whole = {}, None
    for _, operation in augmentation.image_operations:
        step = getattr(operation, "step", None) or {"kind": ""}
        if step["kind"].startswith("resize"):
            mode = "squash" if step["kind"] == "resize" else "shortest"
            is_cubic = step.get("method") == "bicubic"
            choices = {
                "resize_mode": mode,
                "interpolation": "bicubic" if is_cubic else "bilinear",
            }
            whole = step.get("size") or min(step["height"], step["width"])
        elif step["kind"] == "central_crop" and whole:
            choices["crop_fraction"] = min(min(image_size) / whole, 1.0)
    return Preprocessing(augmentation.normalization, **choices)
