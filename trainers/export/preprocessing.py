"""The preprocessing of the evaluation as data, for runtimes without Python."""

from keras_vit.export import image_steps
from keras_vit.export.image_steps import ImageStep
from trainers.augment.crops import pick_size
from trainers.augment.parser import read_calls


def find_image_steps(
    preprocess: str, image_size: tuple[int, int]
) -> list[ImageStep] | None:
    """Return the steps of a line of operations; None if one has no step.

    Args:
        preprocess: The operations of the evaluation.
        image_size: (height, width) of the model.

    Example:
        >>> find_image_steps("resize_small(256)|central_crop", (224, 224))[0]
        {'kind': 'resize_small', 'size': 256}
    """
    steps = []
    for call in read_calls(preprocess, "preprocess"):
        if call.name not in STEPS:
            return None
        steps += call.make(STEPS, image_size=tuple(image_size))
    last = steps[-1] if steps else {}
    if (last.get("height"), last.get("width")) != tuple(image_size):
        # As in trainers.data.model_inputs.to_model_input.
        steps.append(image_steps.resize_step(image_size, "bilinear"))
    return steps


def _resize(size: int | None = None, method: str = "bilinear", *, image_size):
    """Return the steps of `trainers.augment.crops.resize`."""
    return [image_steps.resize_step(pick_size(size, image_size), method)]


def _resize_to_cover(
    size: int | None = None, method: str = "antialias", *, image_size
):
    """Return the steps of `trainers.augment.crops.resize_to_cover`."""
    size = pick_size(size, image_size)
    return [image_steps.resize_to_cover_step(size, method)]


def _resize_small(size: int):
    """Return the steps of `trainers.augment.crops.resize_small`."""
    return [image_steps.resize_small_step(size)]


def _central_crop(size: int | None = None, *, image_size):
    """Return the steps of `trainers.augment.crops.central_crop`."""
    return [image_steps.central_crop_step(pick_size(size, image_size))]


def _value_range(low: float, high: float):
    """Return no step: `Serving` has the normalisation beside the steps."""
    return []


def _normalize(mean: str | tuple, deviation: tuple | None = None):
    """Return no step, as above."""
    return []


STEPS = {
    "central_crop": _central_crop,
    "normalize": _normalize,
    "resize": _resize,
    "resize_small": _resize_small,
    "resize_to_cover": _resize_to_cover,
    "value_range": _value_range,
}
