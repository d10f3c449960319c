"""Preprocessing as data, for runtimes that cannot call Python.

A step is a dict with a "kind":

* "resize", to "height" and "width", ignoring the aspect ratio, by a "method":
  "antialias" is `tf.image.resize(antialias=True)`, "bicubic" is the same with
  `method="bicubic"`, "bilinear" is `tf.image.resize`, and "area" is
  `tf.image.resize(method="area")`.
* "resize_to_cover", by a "method", to the smallest size with the same aspect
  ratio that covers "height" and "width"; the longer side is rounded down.
* "resize_small", by "area", so that the short side is "size".
* "central_crop", to "height" and "width".

The steps are applied in their order to an upright image with pixels from 0 to
255. None is rounded.
"""

from collections.abc import Sequence

from keras_vit.preprocessing.settings import Preprocessing

ImageStep = dict[str, str | int]


def resize_step(image_size: Sequence[int], method: str) -> ImageStep:
    """Return the step that resizes to (height, width)."""
    height, width = image_size
    return {
        "kind": "resize",
        "height": height,
        "width": width,
        "method": method,
    }


def resize_to_cover_step(image_size: Sequence[int], method: str) -> ImageStep:
    """Return the step that resizes to cover (height, width)."""
    return {**resize_step(image_size, method), "kind": "resize_to_cover"}


def resize_small_step(size: int) -> ImageStep:
    """Return the step that resizes the short side to `size`."""
    return {"kind": "resize_small", "size": size}


def central_crop_step(image_size: Sequence[int]) -> ImageStep:
    """Return the step that cuts out the middle, (height, width)."""
    height, width = image_size
    return {"kind": "central_crop", "height": height, "width": width}


def steps_of(
    settings: Preprocessing, image_size: Sequence[int]
) -> list[ImageStep]:
    """Return the steps of a preprocessing.

    Args:
        settings: How images are resized and cropped.
        image_size: (height, width) of the model.

    Example:
        >>> steps_of(Preprocessing("clip", "squash", "bicubic"), (8, 8))
        [{'kind': 'resize', 'height': 8, 'width': 8, 'method': 'bicubic'}]
    """
    method = {"bilinear": "antialias"}.get(
        settings.interpolation, settings.interpolation
    )
    image_size = tuple(image_size)
    whole = settings.uncropped_size(image_size)
    if settings.resize_mode == "squash":
        steps = [resize_step(whole, method)]
    else:
        steps = [resize_to_cover_step(whole, method)]
    is_whole = whole == image_size and settings.resize_mode == "squash"
    return steps if is_whole else [*steps, central_crop_step(image_size)]


def scale_steps(steps: Sequence[ImageStep], factor: int) -> list[ImageStep]:
    """Return the same steps for images with `factor` times the sides.

    Example:
        >>> scale_steps([resize_small_step(256)], 2)[0]
        {'kind': 'resize_small', 'size': 512}
    """
    return [
        {
            key: value * factor if isinstance(value, int) else value
            for key, value in step.items()
        }
        for step in steps
    ]
