"""Operations on images: crops and resizing."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf

from keras_vit.preprocessing import resizing
from keras_vit.preprocessing.decoding import cut_window
from keras_vit.preprocessing.description import (
    central_crop_step,
    resize_small_step,
    resize_step,
)
from trainers.augment.operation_arguments import require


def pad_crop(pixels: int):
    """Pad each side with `pixels` zeros; crop the old size at random."""
    require(pixels >= 0, "pixels", "0 or more", pixels)

    def shift(image, seed):
        border = [[pixels, pixels], [pixels, pixels], [0, 0]]
        return tf.image.stateless_random_crop(
            tf.pad(image, border), tf.shape(image), seed
        )

    return shift


def inception_crop(
    size: int | None = None, smallest: float = 0.05, *, image_size
):
    """Cut out a random part of the image, and resize it.

    The aspect ratio of the part is drawn from 3/4 to 4/3. If no such part is
    found, the whole image is resized.

    Args:
        size: Side of the result, in pixels; None for that of the model.
        smallest: Smallest share of the area that is kept.
        image_size: (height, width) if `size` is None.

    Reference: Szegedy et al. 2015, arXiv:1409.4842; aspect ratio and bilinear
        resizing without antialiasing as in the official ViT code.
    """
    target = pick_size(size, image_size)
    require(0 < smallest <= 1, "smallest", "in (0, 1]", smallest)

    def pick_window(shape, seed):
        start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            seed,
            min_object_covered=0.0,
            area_range=(smallest, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([start[:2], extent[:2]], 0)

    return WindowCrop(pick_window, lambda image: tf.image.resize(image, target))


@dataclasses.dataclass(frozen=True)
class WindowCrop:
    """Cuts a window out of an image, and resizes it."""

    pick_window: Callable
    resize: Callable

    def __call__(self, image, seed):
        window = self.pick_window(tf.shape(image), seed)
        return self.resize(cut_window(image, window))


def random_crop(size: int | None = None, *, image_size):
    """Cut out a part of the image, at a random place.

    Args:
        size: Side of the part, in pixels; None for the size of the model.
        image_size: (height, width) if `size` is None.
    """

    def pick(free, seed):
        draw = tf.random.stateless_uniform((2,), seed)
        return tf.cast(draw * tf.cast(free + 1, tf.float32), tf.int32)

    return Crop("random_crop", pick_size(size, image_size), pick)


def central_crop(size: int | None = None, *, image_size):
    """Cut out the middle of the image.

    Args:
        size: Side of the part, in pixels; None for the size of the model.
        image_size: (height, width) if `size` is None.
    """
    target = pick_size(size, image_size)
    return Crop(
        "central_crop",
        target,
        lambda free, seed: free // 2,
        central_crop_step(target),
    )


@dataclasses.dataclass(frozen=True)
class Crop:
    """Cuts a part of size `target` out of an image.

    `pick` chooses the place of the part: it takes the numbers of rows and
    columns to cut off, (2,), and the seed, and returns the top left corner.
    `step` is the crop as data, if it is not random.
    """

    kind: str
    target: tuple[int, int]
    pick: Callable
    step: Mapping | None = None

    def check(self, image, name):
        height, width = self.target
        check = tf.debugging.Assert(
            tf.reduce_all(tf.shape(image)[:2] >= self.target),
            [
                f"{self.kind} takes images of {height} x {width} pixels or "
                "more. Received: one of shape",
                tf.shape(image),
                name,
            ],
        )
        with tf.control_dependencies([check] if check is not None else []):
            return tf.identity(image)

    def __call__(self, image, seed):
        free = tf.shape(image)[:2] - self.target
        start = tf.concat([self.pick(free, seed), [0]], 0)
        return tf.slice(image, start, (*self.target, image.shape[-1]))


def resize(size: int | None = None, method: str = "bilinear", *, image_size):
    """Resize the image, ignoring its aspect ratio.

    Args:
        size: Side of the result, in pixels; None for that of the model.
        method: bilinear (without antialiasing), antialias (bilinear), bicubic
            (antialiased) or area.
        image_size: (height, width) if `size` is None.
    """
    _check_method(method)
    return Resize(resize_step(pick_size(size, image_size), method))


@dataclasses.dataclass(frozen=True)
class Resize:
    """Resizes an image by a step, see `keras_vit.preprocessing.description`."""

    step: Mapping

    def __call__(self, image, seed):
        return resizing.apply_steps(image, [self.step])


def resize_to_cover(
    size: int | None = None, method: str = "antialias", *, image_size
):
    """Resize the image so that its short side is `size`.

    Args:
        size: The short side, in pixels; None to cover the size of the model.
        method: See `resize`.
        image_size: (height, width) if `size` is None.
    """
    _check_method(method)
    target = pick_size(size, image_size)
    return Resize(resize_step(target, method, "resize_to_cover"))


def _check_method(method):
    rule = f"one of {', '.join(resizing.METHODS)}"
    require(method in resizing.METHODS, "method", rule, method)


def resize_small(size: int):
    """Resize the image so that its short side is `size`; antialiased.

    Each pixel is the mean of the area that it covers, as in the official code.
    """
    require(size > 0, "size", "positive", size)
    return Resize(resize_small_step(size))


def pick_size(size: int | None, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return `size` as (height, width).

    Args:
        size: Side of a square; None for `image_size`.
        image_size: (height, width) of the model.
    """
    require(size is None or size > 0, "size", "positive", size)
    return image_size if size is None else (size, size)


CROPS = {
    "central_crop": central_crop,
    "inception_crop": inception_crop,
    "pad_crop": pad_crop,
    "random_crop": random_crop,
    "resize": resize,
    "resize_small": resize_small,
    "resize_to_cover": resize_to_cover,
}
