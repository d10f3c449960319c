"""Image files in a request, looked at before they are decoded."""

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
        ServingError: If there are more, or a file is not an image.
    """
    from PIL import Image

    count = 0
    for content in files.flat:
        try:
            with Image.open(io.BytesIO(content), formats=FILE_KINDS) as image:
                count += image.width * image.height
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            count = np.inf
        except (OSError, SyntaxError, ValueError):
            kinds = ", ".join(FILE_KINDS)
            raise invalid_request(
                f"Unknown image file format. One of {kinds} required."
            ) from None
        if count > max_pixels:
            raise invalid_request(
                f"The images have too many pixels: {max_pixels:,} are allowed."
            )
    return count
