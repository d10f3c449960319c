"""The preprocessing of a model as a line of operations, and back."""

from keras_vit.preprocessing.model_inputs import RAW
from keras_vit.preprocessing.settings import Preprocessing
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
    whole = settings.uncropped_size(image_size)
    is_whole = whole == tuple(image_size) or whole[0] != whole[1]
    size = None if is_whole else whole[0]
    method = {"bilinear": "antialias"}.get(
        settings.interpolation, settings.interpolation
    )
    if settings.resize_mode == "squash":
        operations = [f"resize({size}, {method})"]
    else:
        operations = [f"resize_to_cover({size}, {method})"]
    if size or settings.resize_mode != "squash":
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
    normalization = parse_augmentation(line, image_size).normalization
    choices = {}
    for call in read_calls(line, "augment"):
        if call.name in DESCRIBERS:
            choices = call.make(DESCRIBERS, image_size=image_size)
        elif call.name == "central_crop" and choices.get("whole"):
            share = min(image_size) / choices["whole"]
            choices["crop_fraction"] = min(share, 1.0)
    choices.pop("whole", None)
    return Preprocessing(normalization, **choices)


def _describe(resize_mode):
    """Return a factory of the settings for which an operation stands."""

    def describe(
        size: int | None = None, method: str = "bilinear", *, image_size
    ):
        return {
            "resize_mode": resize_mode,
            "interpolation": "bicubic" if method == "bicubic" else "bilinear",
            "whole": size or min(image_size),
        }

    return describe


DESCRIBERS = {
    "resize": _describe("squash"),
    "resize_small": _describe("shortest"),
    "resize_to_cover": _describe("shortest"),
}
