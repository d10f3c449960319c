"""Mean and deviation of the pixels that a model was trained with."""

import numbers
from collections.abc import Sequence

import numpy as np

from keras_vit.tables import pick

# A key of NORMALIZATIONS, or mean and deviation.
Mode = str | tuple[Sequence[float], Sequence[float]]
# Mean and deviation, with one number for each channel or one for all.
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


def as_normalization(mode: Mode, argument: str = "mode") -> Normalization:
    """Return mean and deviation, as fractions of 255.

    Args:
        mode: A key of NORMALIZATIONS, or (mean, deviation), each with one
            number for every channel or one for all.
        argument: Name of the argument, for errors.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> preprocessing.normalization.as_normalization("vit")
        ((0.5,), (0.5,))
    """
    if isinstance(mode, str):
        return pick(NORMALIZATIONS, mode, argument)
    try:
        mean, deviation = (_as_numbers(part) for part in mode)
    except (TypeError, ValueError):
        mean, deviation = (), ()
    if not mean or len(mean) != len(deviation) or min(deviation) <= 0:
        raise ValueError(
            f"`{argument}` must be a name or (mean, deviation), with one "
            "number for each channel and deviations greater than 0. "
            f"Received: {argument}={mode!r}"
        )
    return mean, deviation


def _as_numbers(part):
    row = [part] if isinstance(part, numbers.Real) else part
    row = tuple(float(number) for number in row)
    if not np.isfinite(row).all():
        raise ValueError(row)
    return row


def from_range(low: float, high: float) -> Normalization:
    """Return the normalisation that scales pixels of 0 to 255 to a range.

    Args:
        low: The value of 0.
        high: The value of 255; greater than `low`.

    Example:
        >>> preprocessing.normalization.from_range(-1, 1)
        ((0.5,), (0.5,))
    """
    return (0.0 - low / (high - low),), (1 / (high - low),)


def scale_and_offset(normalization: Normalization):
    """Return the divisor of pixels, and the offset to subtract then.

    Shapes:
        returns: two numbers, or two arrays (C,).

    Args:
        normalization: Mean and deviation.
    """
    mean, deviation = (np.asarray(part) for part in normalization)
    scale, offset = 255.0 * deviation, mean / deviation
    return (
        (float(scale[0]), float(offset[0]))
        if len(mean) == 1
        else (
            scale,
            offset,
        )
    )


def to_fractions(images, mode: Mode) -> np.ndarray:
    """Return pixels as fractions of 255, from images of a normalisation.

    Shapes:
        images: (..., C), floats. returns: the same, 0 for black and 1 for
            white.

    Args:
        images: Images as a model reads them, an array.
        mode: See `preprocess_input`.
    """
    pair = as_normalization(mode)
    mean, deviation = (np.asarray(part, "float32") for part in pair)
    return np.asarray(images, "float32") * deviation + mean


def to_uint8(images, mode: Mode) -> np.ndarray:
    """Return the nearest uint8 pixels of images as a model reads them.

    Shapes:
        images: (..., C), floats. returns: the same, uint8.

    Args:
        images: The images.
        mode: See `preprocess_input`.
    """
    pixels = 255 * to_fractions(images, mode)
    return np.clip(np.rint(pixels), 0, 255).astype("uint8")


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
