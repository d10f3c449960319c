"""The number of pixels of image files, read before they are decoded."""

import io
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.serving.errors import invalid_request

# The input of the signatures that take image files.
IMAGE_INPUT = "image_bytes"
FILE_KINDS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def count_pixels(
    files: np.ndarray, max_pixels: int, steps: Sequence[Mapping] = ()
) -> int:
    """Return the number of pixels of image files, from their headers.

    TensorFlow decodes an image of any size, and a small file may hold
    thousands of megapixels. A long thin image becomes large where it is
    resized; it counts with as many bytes as that takes.

    Args:
        files: The contents of the files.
        max_pixels: Largest number of all together.
        steps: What the model does with them; see
            `keras_vit.export.image_steps`.

    Raises:
        ServingError: If there are more, or a file cannot be decoded.
    """
    count = 0
    for content in files.flat:
        height, width = _read_size(content)
        if height * width < np.inf:
            resized = count_resized(height, width, steps)
            turned = count_resized(width, height, steps)
            count += max(height * width, resized, turned)
        if height * width == np.inf or count > max_pixels:
            raise invalid_request(
                "The images have too many pixels, as files or resized for the "
                f"model: {max_pixels:,} are allowed."
            )
    return count


def count_resized(height: int, width: int, steps: Sequence[Mapping]) -> int:
    """Return how many pixels of a file take the memory of resizing an image.

    Zero for images of a usual shape, which take at most four times the floats
    of the model's input.

    Args:
        height: The height of the image.
        width: Its width.
        steps: See `count_pixels`.
    """
    most = 0
    for step in steps:
        rows, columns = step.get("height"), step.get("width")
        if step["kind"] == "resize_small":
            scale = step["size"] / min(height, width)
            rows, columns = height * scale, width * scale
        elif step["kind"] == "resize_to_cover":
            scale = max(rows / height, columns / width)
            rows, columns = height * scale, width * scale
        # The columns are resized first.
        most = max(most, rows * max(width, columns))
        height, width = rows, columns
    # A float has the bytes of four channels of a pixel.
    return round(4 * (most - 4 * height * width)) if steps else 0


def _read_size(content):
    """Return (height, width) of an image file; infinite for a bomb."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FILE_KINDS) as image:
            width, height = image.size
            is_animated = getattr(image, "is_animated", False)
            is_webp = image.format == "WEBP"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return np.inf, 1
    except (OSError, SyntaxError, ValueError):
        kinds = ", ".join(FILE_KINDS)
        raise invalid_request(
            f"Unknown image file format. One of {kinds} required."
        ) from None
    if is_webp and is_animated:  # TensorFlow decodes GIF alone.
        raise invalid_request(
            "An animated WebP file cannot be decoded. Send one of its images."
        )
    if not width * height:
        raise invalid_request("An image file has no pixels.")
    return height, width
