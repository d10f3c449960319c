"""Preprocessing: how a model reads images."""

import dataclasses
import math
from collections.abc import Mapping

from keras_vit.preprocessing.normalization import (
    NORMALIZATIONS,
    Mode,
    Normalization,
    as_normalization,
)
from keras_vit.tables import pick

# Of an image with its aspect ratio kept: as floats, they take 400 MB.
MOST_RESIZED_PIXELS = 2**25


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How the images of a model are resized, cropped and normalised.

    An image is resized, its middle is cut out, and its pixels become
    (x / 255 - mean) / deviation. The size of the result is that of the model.

    Args:
        normalization: A key of NORMALIZATIONS, or (mean, deviation), each with
            one number for every channel, as fractions of 255.
        resize_mode: A key of RESIZE_MODES: "squash" ignores the aspect ratio
            of the image, "shortest" keeps it and sets the short side.
        interpolation: A key of INTERPOLATIONS. Both are antialiased, as in
            Pillow.
        crop_fraction: Share of the resized sides that the crop keeps, in
            (0, 1].

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

    def __post_init__(self):
        pair = as_normalization(self.normalization, "normalization")
        names = [name for name, row in NORMALIZATIONS.items() if row == pair]
        object.__setattr__(self, "normalization", names[0] if names else pair)
        pick(RESIZE_MODES, self.resize_mode, "resize_mode")
        pick(INTERPOLATIONS, self.interpolation, "interpolation")
        if not 0 < self.crop_fraction <= 1:
            raise ValueError(
                "`crop_fraction` must be in (0, 1]. Received: "
                f"crop_fraction={self.crop_fraction!r}"
            )

    @property
    def mean_and_deviation(self) -> Normalization:
        """Both numbers of each channel, or of all, as fractions of 255."""
        return as_normalization(self.normalization)

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

        With the mode "shortest", these are the sides of the largest rectangle
        that the resized image must cover.

        Args:
            image_size: (height, width) of the model, in pixels.

        Example:
            >>> Preprocessing(crop_fraction=0.875).uncropped_size((224, 224))
            (256, 256)
        """
        return tuple(math.floor(s / self.crop_fraction) for s in image_size)

    def resized_size(
        self, shape: tuple[int, int], image_size: tuple[int, int]
    ) -> tuple[int, int]:
        """Return (height, width) of an image after it was resized.

        Args:
            shape: (height, width) of the image.
            image_size: (height, width) of the model.

        Raises:
            ValueError: If the image is so long and thin that it would become
                enormous.

        Example:
            >>> settings = Preprocessing(resize_mode="shortest")
            >>> settings.resized_size((480, 640), (224, 224))
            (224, 298)
        """
        target = self.uncropped_size(image_size)
        height, width = RESIZE_MODES[self.resize_mode](shape, target)
        if height * width > MOST_RESIZED_PIXELS:
            raise ValueError(
                f"The image is too long and thin to be resized to {height} x "
                f"{width} pixels. Received: {shape[0]} x {shape[1]}"
            )
        return height, width


def as_preprocessing(value):
    """Return the settings that a normalisation or a dict stands for.

    Args:
        value: A normalisation, as in `Preprocessing`, the fields by name, or
            something else, which is returned as it is.
    """
    if isinstance(value, (str, tuple, list)):
        return Preprocessing(value)
    if isinstance(value, Mapping):
        return Preprocessing(**value)
    return value


def preprocessing_of(model) -> Preprocessing:
    """Return the preprocessing of a VisionTransformer.

    Args:
        model: The model.

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


def _cover(shape, target):
    """Return the size of an image that covers a rectangle, as in torchvision.

    The side that touches the rectangle is exact; the other one is rounded
    down.
    """
    height, width = shape
    rows, columns = target
    if height * columns < width * rows:
        return rows, max(rows * width // height, columns)
    return max(columns * height // width, rows), columns


def _squash(shape, target):
    return target


RESIZE_MODES = {"squash": _squash, "shortest": _cover}
# The name of the filter in Pillow.
INTERPOLATIONS = {"bilinear": "BILINEAR", "bicubic": "BICUBIC"}
