"""The operations that resize and crop images, as data: a list of steps.

`Preprocessing.steps` and the lines of operations of the trainers state them.
They are computed in a TensorFlow graph (`resizing`), by Pillow (`image_files`),
by the layer `ImagePreprocessor` and, for the web page, by `data/web/resize.js`.
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
255. None is rounded. The two that keep the aspect ratio first cut the middle
out of an image that is more than LONGEST times as long as it is wide.
"""

from collections.abc import Mapping, Sequence

import numpy as np

ImageStep = dict[str, str | int]
# Otherwise, a picture of 60,000 x 1 pixels would become one of gigabytes.
LONGEST = 64


def resize_step(
    image_size: Sequence[int], method: str, kind: str = "resize"
) -> ImageStep:
    """Return the step that resizes to (height, width)."""
    height, width = image_size
    return {"kind": kind, "height": height, "width": width, "method": method}


def resize_to_cover_step(image_size: Sequence[int], method: str) -> ImageStep:
    """Return the step that resizes to cover (height, width)."""
    return resize_step(image_size, method, "resize_to_cover")


def resize_small_step(size: int) -> ImageStep:
    """Return the step that resizes the short side to `size`."""
    return {"kind": "resize_small", "size": size}


def central_crop_step(image_size: Sequence[int]) -> ImageStep:
    """Return the step that cuts out the middle, (height, width)."""
    height, width = image_size
    return {"kind": "central_crop", "height": height, "width": width}


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


def cut_size(step: Mapping, shape: tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of the middle that a step reads.

    Args:
        step: The step.
        shape: (height, width) of the image.
    """
    height, width = shape
    if step["kind"] == "central_crop":
        return step["height"], step["width"]
    if step["kind"] == "resize":
        return shape
    return min(height, LONGEST * width), min(width, LONGEST * height)


def resized_size(step: Mapping, shape: tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of an image after a step, as in torchvision.

    The side that touches the rectangle to cover is exact; the other one is
    rounded down.

    Args:
        step: The step.
        shape: (height, width) of the image, after `cut_size`.

    Example:
        >>> resized_size(resize_to_cover_step((224, 224), "area"), (480, 640))
        (224, 298)
    """
    if step["kind"] == "resize_small":
        scale = np.float32(step["size"] / min(shape))
        return tuple(int(np.rint(np.float32(side) * scale)) for side in shape)
    rows, columns = step["height"], step["width"]
    if step["kind"] != "resize_to_cover":
        return rows, columns
    height, width = shape
    if height * columns < width * rows:
        return rows, max(rows * width // height, columns)
    return max(columns * height // width, rows), columns
