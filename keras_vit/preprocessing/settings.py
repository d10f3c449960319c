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
from keras_vit.preprocessing.steps import (
    ImageStep,
    central_crop_step,
    resize_step,
)
from keras_vit.tables import pick


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
        steps = [resize_step(whole, METHODS[self.interpolation], kind)]
        if whole != image_size or self.resize_mode != "squash":
            steps.append(central_crop_step(image_size))
        return steps


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


# The kind of the step that resizes.
RESIZE_MODES = {"squash": "resize", "shortest": "resize_to_cover"}
# The name of the filter in Pillow, and the method of a step.
INTERPOLATIONS = {"bilinear": "BILINEAR", "bicubic": "BICUBIC"}
METHODS = {"bilinear": "antialias", "bicubic": "bicubic"}
