"""Preprocessing as data, for runtimes that cannot call Python.

A step is a dict with a "kind":

* "resize", to "height" and "width", ignoring the aspect ratio, by a "method":
  "antialias" is `tf.image.resize(antialias=True)`, "bilinear" is
  `tf.image.resize`, and "area" is `tf.image.resize(method="area")`.
* "resize_small", by "area", so that the short side is "size".
* "central_crop", to "height" and "width".

The steps are applied in their order to an upright image with pixels from 0 to
255. None is rounded.
"""

from collections.abc import Sequence

from keras_vit.export.serving_options import Serving

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


def resize_small_step(size: int) -> ImageStep:
    """Return the step that resizes the short side to `size`."""
    return {"kind": "resize_small", "size": size}


def central_crop_step(image_size: Sequence[int]) -> ImageStep:
    """Return the step that cuts out the middle, (height, width)."""
    height, width = image_size
    return {"kind": "central_crop", "height": height, "width": width}


def find_steps(
    serving: Serving, image_size: Sequence[int]
) -> list[ImageStep] | None:
    """Return the steps of the preprocessing; None if they are not known.

    Args:
        serving: Pre- and post-processing of the model.
        image_size: (height, width) of the model.
    """
    if serving.read_image is None:
        return [resize_step(image_size, "antialias")]
    return None if serving.image_steps is None else [*serving.image_steps]


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
