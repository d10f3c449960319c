"""The number of pixels of image files, read before they are decoded."""

import io

import numpy as np

from keras_vit.serving.errors import invalid_request

# The input of the signatures that take image files.
IMAGE_INPUT = "image_bytes"
FILE_KINDS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def count_pixels(files: np.ndarray, max_pixels: int) -> int:
    """Return the number of pixels of image files, from their headers.

    TensorFlow decodes an image of any size, and a small file may hold
    thousands of megapixels.

    Args:
        files: The contents of the files.
        max_pixels: Largest number of all together.

    Raises:
        ServingError: If there are more, or a file cannot be decoded.
    """
    count = 0
    for content in files.flat:
        count += _num_pixels(content)
        if count > max_pixels:
            raise invalid_request(
                f"The images have too many pixels: {max_pixels:,} are allowed."
            )
    return count


def _num_pixels(content):
    """Return the number of pixels of an image file; infinity for a bomb."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FILE_KINDS) as image:
            width, height = image.size
            is_animated = getattr(image, "is_animated", False)
            is_webp = image.format == "WEBP"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return np.inf
    except (OSError, SyntaxError, ValueError):
        kinds = ", ".join(FILE_KINDS)
        raise invalid_request(
            f"Unknown image file format. One of {kinds} required."
        ) from None
    if is_webp and is_animated:  # TensorFlow decodes GIF alone.
        raise invalid_request(
            "An animated WebP file cannot be decoded. Send one of its images."
        )
    return width * height
