"""The operations on images and on batches, by name.

Each value is a factory: it takes the arguments in the line of operations and
returns a function of an image and a seed (OPS) or of a batch (BATCH_OPS, see
`mixing`). Where the images have maps, an answer for each pixel, the attribute
`on_maps` of this function moves a map (H, W, 1) as the image was moved, with
the same arguments: of each pixel it takes the nearest one, and NaN outside of
the image. An operation without it cannot be used there.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from keras_vit.preprocessing import resizing
from keras_vit.preprocessing.decoding import cut_window
from keras_vit.preprocessing.description import (
    NORMALIZATIONS,
    as_normalization,
    central_crop_step,
    from_range,
    resize_small_step,
    resize_step,
)
from trainers.augment.parser import ArgumentError, require
from trainers.augment.randaugment import GEOMETRY, randaugment


def mask_box(images: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Return whether each pixel (H, W) is inside a rectangle.

    Args:
        images: (..., H, W, C).
        start: (2,), floats: the first row and column.
        end: (2,), floats: the row and column after the last ones.
    """
    height, width = tf.unstack(tf.shape(images)[-3:-1])
    rows = tf.range(tf.cast(height, tf.float32))
    columns = tf.range(tf.cast(width, tf.float32))
    rows = (start[0] <= rows) & (rows < end[0])
    columns = (start[1] <= columns) & (columns < end[1])
    return rows[:, None] & columns


def pad_crop(pixels: int):
    """Pad each side with `pixels` zeros; crop the old size at random."""
    require(pixels >= 0, "pixels", "0 or more", pixels)

    def shift(image, seed, fill=0):
        border = [[pixels, pixels], [pixels, pixels], [0, 0]]
        return tf.image.stateless_random_crop(
            tf.pad(image, border, constant_values=fill), tf.shape(image), seed
        )

    shift.on_maps = functools.partial(shift, fill=UNKNOWN)
    return shift


UNKNOWN = float("nan")


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

    return WindowCrop(pick_window, target)


@dataclasses.dataclass(frozen=True)
class WindowCrop:
    """Cuts a window out of an image, and resizes it to `target`."""

    pick_window: Callable
    target: tuple[int, int]

    def resize(self, window):
        return tf.image.resize(window, self.target)

    def __call__(self, image, seed):
        window = self.pick_window(tf.shape(image), seed)
        return self.resize(cut_window(image, window))

    def on_maps(self, target, seed):
        window = self.pick_window(tf.shape(target), seed)
        return resize_map(cut_window(target, window), self.target)


def resize_map(target: tf.Tensor, size) -> tf.Tensor:
    """Return a map (H, W, 1) at another size: of each pixel the nearest."""
    return tf.image.resize(target, size, "nearest")


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

    on_maps = __call__


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

    def on_maps(self, target, seed):
        step = {**self.step, "method": "nearest"}
        return resizing.apply_steps(target, [step])


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


def resize_small(size: int, method: str = "area"):
    """Resize the image so that its short side is `size`; the other is rounded.

    Args:
        size: The short side, in pixels.
        method: See `resize`; that of the official code is area, where each
            pixel is the mean of the area that it covers.
    """
    require(size > 0, "size", "positive", size)
    _check_method(method)
    return Resize(resize_small_step(size, method))


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


def random_erasing(
    probability: float = 0.25,
    smallest: float = 0.02,
    largest: float = 1 / 3,
    aspect: float = 0.3,
    fill: float | None = None,
):
    """Overwrite a random rectangle of some of the images.

    Args:
        probability: Share of the images that are changed.
        smallest: Smallest area of the rectangle, as a share of the image.
        largest: Largest area of the rectangle, as a share of the image.
        aspect: Smallest aspect ratio; the largest one is 1 / aspect. The
            logarithm of the ratio is uniform in between.
        fill: Level to write, from 0 to 255; None to draw a random level for
            each pixel and channel.

    Reference: Zhong et al. 2017, arXiv:1708.04896, algorithm 1.
    Differs: The paper draws rectangles until one fits into the image; here
        ten are drawn, and the first that fits is used. The aspect ratio is
        drawn on a logarithmic scale, not a linear one.
    """
    require(0 <= probability <= 1, "probability", "in [0, 1]", probability)
    require(0 < smallest <= 1, "smallest", "in (0, 1]", smallest)
    require(smallest <= largest <= 1, "largest", "in [smallest, 1]", largest)
    require(0 < aspect <= 1, "aspect", "in (0, 1]", aspect)
    if fill is not None:
        require(0 <= fill <= 255, "fill", "in [0, 255]", fill)
        fill = float(fill)

    def erase(image, seed):
        seeds = tf.unstack(tf.random.split(seed, 4))
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        area = tf.reduce_prod(size) * tf.random.stateless_uniform(
            (10,), seeds[0], smallest, largest
        )
        ratio = tf.exp(
            math.log(aspect)
            * tf.random.stateless_uniform((10,), seeds[1], -1.0, 1.0)
        )
        sides = tf.round(
            tf.stack([tf.sqrt(area * ratio), tf.sqrt(area / ratio)], -1)
        )
        fits = tf.reduce_all(sides <= size, -1)
        sides = sides[tf.argmax(fits)]
        draw = tf.random.stateless_uniform((3,), seeds[2])
        start = tf.floor(draw[1:] * (size - sides + 1))
        is_drawn = (draw[0] < probability) & tf.reduce_any(fits)

        def overwrite():
            levels = fill
            if fill is None:
                levels = tf.random.stateless_uniform(
                    tf.shape(image), seeds[3], 0.0, 255.0
                )
            box = mask_box(image, start, start + sides)[..., None]
            return tf.where(box, levels, image)

        # Drawing the noise is slow, so it is drawn only where it is used.
        return tf.cond(is_drawn, overwrite, lambda: image)

    erase.on_maps = lambda target, seed: target
    return erase


ERASING = {"random_erasing": random_erasing}


def mixup(alpha: float = 0.2):
    """Average each image with another one.

    One weight w is drawn from Beta(alpha, alpha) for the batch; max(w, 1 - w)
    is the weight of the image, and the rest that of the other image.

    Args:
        alpha: A larger value gives the other image more weight on average.

    Reference: Zhang et al. 2018, arXiv:1710.09412; the maximum as in the
        official code of Beyer et al. 2022, arXiv:2205.01580.
    Differs: The official code mixes each image with the previous one in the
        batch of its device, and draws one weight per device. Here images are
        mixed in pairs, the first with the second, with one weight per batch.
        So splitting the batch between pairs does not change the result.
    """
    require(alpha > 0, "alpha", "positive", alpha)

    def mix(images, others, seed):
        share = draw_beta(alpha, seed)
        share = tf.minimum(share, 1 - share)
        return images + tf.cast(share, images.dtype) * (others - images), share

    return mix


def cutmix(alpha: float = 1.0):
    """Replace a rectangle of each image by that of another one.

    The batch shares one rectangle. Its area is drawn from Beta(alpha, alpha),
    it has the aspect ratio of the image, and its centre is uniform in the
    image. The labels are mixed in proportion to the area inside the image.

    Args:
        alpha: The larger, the closer the area is to half of the image.

    Reference: Yun et al. 2019, arXiv:1905.04899, section 3.1.
    Differs: Images are mixed in pairs, as in `mixup`.
    """
    require(alpha > 0, "alpha", "positive", alpha)

    def mix(images, others, seed):
        of_share, of_place = tf.unstack(tf.random.split(seed, 2))
        size = tf.cast(tf.shape(images)[1:3], tf.float32)
        centre = size * tf.random.stateless_uniform((2,), of_place)
        half = size * tf.sqrt(draw_beta(alpha, of_share)) / 2
        start = tf.round(tf.maximum(centre - half, 0.0))
        end = tf.round(tf.minimum(centre + half, size))
        box = mask_box(images, start, end)[..., None]
        share = tf.reduce_prod((end - start) / size)
        return tf.where(box, others, images), share

    mix.on_maps = mix
    return mix


def draw_beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Return a draw from Beta(alpha, alpha).

    Ulrich's method gives a draw from Beta(alpha + 1, alpha + 1), and two more
    uniform draws turn it into one from Beta(alpha, alpha). There is no
    rejection, so XLA can compile it. It works with the logarithm of the odds,
    which stays accurate for small alpha.

    Reference: Devroye 1986, Non-Uniform Random Variate Generation, IX.3.2
        (gamma variates of alpha from alpha + 1) and IX.4.2 (Ulrich's method).
    """
    draw = tf.random.stateless_uniform((4,), seed, 1e-30, 1.0)
    radius = tf.sqrt(1 - draw[0] ** (2 / (2 * alpha + 1)))
    odds = 2 * tf.atanh(radius * tf.cos(2 * math.pi * draw[1]))
    return tf.sigmoid(odds + tf.math.log(draw[2] / draw[3]) / alpha)


def mix_pairs(
    operations: Sequence[tuple[int, Callable]],
    images: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mix images in pairs with one operation, which is drawn for each batch.

    Images 0 and 1 form a pair, images 2 and 3 another, and so on. An unpaired
    image is mixed with itself, and so is an image whose partner has weight 0.

    Shapes:
        images: (B, H, W, C). labels: (B, classes), or maps (B, H, W, 1).
        weights: (B,). seed: (2,).
        returns: images and labels of the same shapes.

    Args:
        operations: (place in the line, operation) pairs.
        images: Images to mix.
        labels: Labels of the images.
        weights: Weights of the images; 0 marks a missing image.
        seed: Seed of all random numbers.
    """
    if not operations:
        return images, labels
    own = tf.range(tf.shape(weights)[0])
    other = tf.bitwise.bitwise_xor(own, 1)
    other = tf.where(other < tf.size(own), other, own)
    is_there = weights > 0
    other = tf.where(is_there & tf.gather(is_there, other), other, own)
    others, has_maps = tf.gather(images, other), len(labels.shape) == 4

    def branch(place, operation):
        key = tf.random.fold_in(seed, place)

        def mix():
            if not has_maps:
                return operation(images, others, key)
            moved, _ = operation.on_maps(labels, tf.gather(labels, other), key)
            return operation(images, others, key)[0], moved

        return mix

    choice = tf.random.stateless_uniform(
        (), tf.random.fold_in(seed, -1), 0, len(operations), tf.int32
    )
    branches = [branch(*row) for row in operations]
    images, share = tf.switch_case(choice, branches)
    if has_maps:
        return images, share  # The maps.
    share = tf.cast(share, labels.dtype)
    return images, labels + share * (tf.gather(labels, other) - labels)


MIXING = {"cutmix": cutmix, "mixup": mixup}


def value_range(low: float, high: float):
    """Scale pixels from 0..255 to this range; the default is -1 to 1."""
    require(low < high, "high", "more than `low`", high)
    return from_range(float(low), float(high))


def state_normalization(mean: str | tuple, deviation: tuple | None = None):
    """Normalise pixels by a name, or by a mean and a deviation of each channel.

    Args:
        mean: A key of NORMALIZATIONS, such as imagenet; or the means, as
            fractions of 255.
        deviation: The deviations, as fractions of 255.
    """
    is_name = isinstance(mean, str)
    require(
        is_name == (deviation is None),
        "deviation",
        "given with the means, and not with a name",
        deviation,
    )
    rule = f"one of {', '.join(NORMALIZATIONS)}"
    require(not is_name or mean in NORMALIZATIONS, "mean", rule, mean)
    if is_name:
        return NORMALIZATIONS[mean]
    require(mean and None not in mean, "mean", "numbers", mean)
    try:
        return as_normalization((mean, deviation))
    except ValueError:
        rule = "as many numbers greater than 0 as there are means"
        raise ArgumentError("deviation", rule, deviation) from None


_IMAGE_OPS = {
    **CROPS,
    **ERASING,
    **GEOMETRY,
    "normalize": state_normalization,
    "randaugment": randaugment,
    "value_range": value_range,
}
OPS = dict(sorted(_IMAGE_OPS.items()))

BATCH_OPS = dict(MIXING)
# Those that need not be tried: others come from plug-ins.
BUILT_IN = frozenset({*OPS, *BATCH_OPS})
# Operations that do not change images: the caller normalises them at the end.
NORMALIZING = ("value_range", "normalize")
