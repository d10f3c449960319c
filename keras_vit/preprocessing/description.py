"""How a model reads images, as data: operations, and a normalisation.

`Preprocessing` and the lines of operations of the trainers state it. The
operations are a list of steps, which are computed in a TensorFlow graph
(`resizing`), by Pillow (`image_files`), by the layer `ImagePreprocessor` and,
for the web page, by `data/web/resize.js`. A step is a dict with a "kind":

* "resize", to "height" and "width", ignoring the aspect ratio, by a "method":
  "antialias" is `tf.image.resize(antialias=True)`, "bicubic" is the same with
  `method="bicubic"`, "bilinear" is `tf.image.resize`, and "area" is
  `tf.image.resize(method="area")`.
* "resize_to_cover", by a "method", to the smallest size with the same aspect
  ratio that covers "height" and "width"; the longer side is rounded down.
* "resize_small", by a "method" ("area" if there is none), so that the short
  side is "size"; the longer one is rounded.
* "central_crop", to "height" and "width".

The steps are applied in their order to an upright image with pixels from 0 to
255. None is rounded. The two that keep the aspect ratio first cut the middle
out of an image that is more than LONGEST times as long as it is wide.
"""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.arguments import check_pixel_range
from keras_vit.tables import check_name, pick

# Mean and deviation, with one number for each channel or one for all.
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
# A key of NORMALIZATIONS, or mean and deviation.
Mode = str | tuple[Sequence[float], Sequence[float]]
ImageStep = dict[str, str | int]

# Mean and deviation of the pixels that models were trained with, as fractions
# of 255.
NORMALIZATIONS = {
    "vit": ((0.5,), (0.5,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    ),
    "zero_one": ((0.0,), (1.0,)),
    "satellite": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
}
# The kind of the step that resizes.
RESIZE_MODES = {
    "squash": "resize",
    "shortest": "resize_to_cover",
    "shortest_rounded": "resize_small",
}
# The method of a step.
INTERPOLATIONS = {
    "bilinear": "antialias",
    "bicubic": "bicubic",
    "area": "area",
}
# The filters of Pillow, at their numbers there, and the nearest one to ours.
PILLOW_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
NEAREST_FILTERS = {"bilinear": "bilinear", "bicubic": "bicubic", "area": "box"}
# Otherwise, a picture of 60,000 x 1 pixels would become one of gigabytes.
LONGEST = 64


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How the images of a model are resized, cropped and normalised.

    An image is resized, its middle is cut out, and its pixels become
    (x / 255 - mean) / deviation. The size of the result is that of the model.

    Args:
        normalization: A key of NORMALIZATIONS, or (mean, deviation), each with
            one number for every channel, as fractions of 255.
        resize_mode: A key of RESIZE_MODES: "squash" ignores the aspect ratio
            of the image, "shortest" keeps it and sets the short side. The long
            side is rounded down, as in torchvision; with "shortest_rounded"
            to the nearest number, as in the official code.
        interpolation: A key of INTERPOLATIONS. "bilinear" and "bicubic" are
            antialiased, as in Pillow; "area" is the mean of the area that a
            new pixel covers, as in TensorFlow and the official code.
        crop_fraction: Share of the resized sides that the crop keeps, in
            (0, 1].
        pixel_range: The numbers that are black and white in files of more
            than 8 bits, which become 0 and 255; None for those of 16 bits,
            0 and 65535.

    Raises:
        ValueError: If a value is invalid.

    Example:
        >>> Preprocessing("imagenet", "shortest", "bicubic", 0.875).mean
        (0.485, 0.456, 0.406)
    """

    normalization: Mode = "vit"
    resize_mode: str = "squash"
    interpolation: str = "bilinear"
    crop_fraction: float = 1.0
    pixel_range: tuple[float, float] | None = None

    def __post_init__(self):
        pair = as_normalization(self.normalization, "normalization")
        names = [name for name, row in NORMALIZATIONS.items() if row == pair]
        object.__setattr__(self, "normalization", names[0] if names else pair)
        check_name(RESIZE_MODES, self.resize_mode, "resize_mode")
        check_name(INTERPOLATIONS, self.interpolation, "interpolation")
        if not 0 < self.crop_fraction <= 1:
            raise ValueError(
                "`crop_fraction` must be in (0, 1]. Received: "
                f"crop_fraction={self.crop_fraction!r}"
            )
        if self.pixel_range is not None:
            pair = check_pixel_range(self.pixel_range)
            object.__setattr__(self, "pixel_range", pair)

    @property
    def mean_and_deviation(self) -> Normalization:
        """Both numbers of each channel, or of all, as fractions of 255."""
        return NORMALIZATIONS.get(self.normalization, self.normalization)

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of each channel, or of all, as fractions of 255."""
        return self.mean_and_deviation[0]

    @property
    def deviation(self) -> tuple[float, ...]:
        """The deviation of each channel, or of all, as fractions of 255."""
        return self.mean_and_deviation[1]

    def for_channels(self, channels: int) -> tuple[list, list]:
        """Return mean and deviation as lists, with a number for each channel.

        Args:
            channels: The number of channels; fewer numbers are repeated.
        """
        return tuple(
            list(part) * channels if len(part) == 1 else list(part)
            for part in self.mean_and_deviation
        )

    def uncropped_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return (height, width) before the crop to the size of the model.

        With a mode that keeps the aspect ratio, these are the sides of the
        rectangle that the resized image must cover.

        Args:
            image_size: (height, width) of the model, in pixels.

        Example:
            >>> Preprocessing(crop_fraction=0.875).uncropped_size((224, 224))
            (256, 256)
        """
        return tuple(math.floor(s / self.crop_fraction) for s in image_size)

    def steps(self, image_size: tuple[int, int]) -> list[ImageStep]:
        """Return the operations that resize and crop an image.

        Args:
            image_size: (height, width) of the model, in pixels.

        Example:
            >>> Preprocessing("clip", "squash", "bicubic").steps((8, 8))
            [{'kind': 'resize', 'height': 8, 'width': 8, 'method': 'bicubic'}]
        """
        image_size = tuple(image_size)
        whole = self.uncropped_size(image_size)
        kind = RESIZE_MODES[self.resize_mode]
        steps = [resize_step(whole, INTERPOLATIONS[self.interpolation], kind)]
        if whole != image_size or self.resize_mode != "squash":
            steps.append(central_crop_step(image_size))
        return steps


def crop_fraction_of(side: int, whole: int) -> float:
    """Return the share of `whole` pixels that a crop to `side` keeps.

    Example:
        >>> fraction = preprocessing.description.crop_fraction_of(48, 59)
        >>> Preprocessing(crop_fraction=fraction).uncropped_size((48, 48))
        (59, 59)
    """
    fraction = side / whole
    # The quotient is rounded; a size a little too small is rounded down.
    while math.floor(side / fraction) < whole:
        fraction = math.nextafter(fraction, 0)
    return fraction


def as_preprocessing(value):
    """Return the settings that a normalisation or a dict stands for.

    Args:
        value: A normalisation, as in `Preprocessing`, the fields by name, or
            something else, which is returned as it is.
    """
    if isinstance(value, (str, tuple, list)):
        return Preprocessing(value)
    return Preprocessing(**value) if isinstance(value, Mapping) else value


def preprocessing_of(model) -> Preprocessing:
    """Return the preprocessing of a VisionTransformer.

    Raises:
        ValueError: If it is not a VisionTransformer.
    """
    found = getattr(getattr(model, "config", None), "preprocessing", None)
    if not isinstance(found, Preprocessing):
        raise ValueError(
            "`model` must be a VisionTransformer, which knows how its images "
            "are normalised; for a model around one, pass "
            f"`model.get_layer(...)`. Received: {type(model).__name__}"
        )
    return found


def as_normalization(mode: Mode, argument: str = "mode") -> Normalization:
    """Return mean and deviation, as fractions of 255.

    Args:
        mode: A key of NORMALIZATIONS, or (mean, deviation), each with one
            number for every channel or one for all.
        argument: Name of the argument, for errors.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> preprocessing.description.as_normalization("vit")
        ((0.5,), (0.5,))
    """
    if isinstance(mode, str):
        return pick(NORMALIZATIONS, mode, argument)
    try:
        mean, deviation = (
            tuple(map(float, [x] if isinstance(x, numbers.Real) else x))
            for x in mode
        )
    except (TypeError, ValueError):
        mean, deviation = (), ()
    is_valid = mean and len(mean) == len(deviation) and min(deviation) > 0
    if not is_valid or not np.isfinite([mean, deviation]).all():
        raise ValueError(
            f"`{argument}` must be a name or (mean, deviation), with one "
            "number for each channel and deviations greater than 0. "
            f"Received: {argument}={mode!r}"
        )
    return mean, deviation


def from_range(low: float, high: float) -> Normalization:
    """Return the normalisation that scales pixels of 0 to 255 to a range.

    Example:
        >>> preprocessing.description.from_range(-1, 1)
        ((0.5,), (0.5,))
    """
    return (0.0 - low / (high - low),), (1 / (high - low),)


def to_fractions(images, mode: Mode) -> np.ndarray:
    """Return pixels as fractions of 255, from images of a normalisation.

    Shapes:
        images: (..., C), floats. returns: the same, 0 for black and 1 for
            white.
    """
    pair = as_normalization(mode)
    mean, deviation = (np.asarray(part, "float32") for part in pair)
    return np.asarray(images, "float32") * deviation + mean


def as_colours(pixels: np.ndarray) -> np.ndarray:
    """Return pixels that can be shown: of other channels, their mean.

    Shapes:
        pixels: (..., C). returns: (..., 1 or 3).
    """
    if pixels.shape[-1] in (1, 3):
        return pixels
    return pixels.mean(-1, keepdims=True)


def to_uint8(images, mode: Mode) -> np.ndarray:
    """Return the nearest uint8 pixels of the images of `to_fractions`."""
    pixels = 255 * to_fractions(images, mode)
    return np.clip(np.rint(pixels), 0, 255).astype("uint8")


def resize_step(
    image_size: Sequence[int], method: str, kind: str = "resize"
) -> ImageStep:
    """Return the step that resizes to (height, width), or to cover it."""
    height, width = image_size
    if kind == "resize_small":
        return resize_small_step(max(image_size), method)
    return {"kind": kind, "height": height, "width": width, "method": method}


def resize_small_step(size: int, method: str = "area") -> ImageStep:
    """Return the step that resizes the short side to `size`."""
    return {"kind": "resize_small", "size": size, "method": method}


def area_weights(inputs: int, outputs: int, xp=np):
    """Return the share of each input pixel in the mean of an output's area.

    Shapes:
        returns: (outputs, inputs), floats; each row has the sum 1.

    Args:
        inputs: Number of pixels of one side.
        outputs: The same, of the result.
        xp: NumPy or `keras.ops`.

    Example:
        >>> preprocessing.description.area_weights(3, 2).round(2).tolist()
        [[0.67, 0.33, 0.0], [0.0, 0.33, 0.67]]
    """
    first = xp.arange(inputs, dtype="float32")[None]
    place = xp.arange(outputs, dtype="float32")[:, None]
    ratio = xp.divide(inputs, outputs)
    end = xp.minimum((place + 1) * ratio, first + 1)
    return xp.maximum(end - xp.maximum(place * ratio, first), 0) / ratio


def central_crop_step(image_size: Sequence[int]) -> ImageStep:
    """Return the step that cuts out the middle, (height, width)."""
    height, width = image_size
    return {"kind": "central_crop", "height": height, "width": width}


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
        >>> step = {"kind": "resize_to_cover", "height": 224, "width": 224}
        >>> preprocessing.description.resized_size(step, (480, 640))
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
