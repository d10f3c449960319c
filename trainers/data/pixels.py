"""PixelOptions: how the pixels of image files are read; needs no TensorFlow."""

from typing import NamedTuple

from keras_vit.arguments import check_pixel_range


class PixelOptions(NamedTuple):
    """How the pixels of image files are read.

    Args:
        channels: Number of channels; None for 3.
        pixel_range: The numbers that are black and white in files of more
            than 8 bits; None for those of 16 bits, 0 and 65535.
    """

    channels: int | None = None
    pixel_range: tuple[float, float] | None = None


USUAL = PixelOptions()


def parse_pixel_range(text: str | None) -> tuple[float, float] | None:
    """Return the range in a flag.

    Raises:
        ValueError: If it is none.

    Example:
        >>> parse_pixel_range("0,4095")
        (0.0, 4095.0)
    """
    return text and check_pixel_range(text.split(","))
