"""Image files in a request, looked at before they are decoded."""

import io

import numpy as np

from keras_vit.serving.server.refusals import invalid

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
        Refusal: If there are more, or a file is not an image.
    """
    from PIL import Image, UnidentifiedImageError

    count = 0
    for content in files.flat:
        try:
            with Image.open(io.BytesIO(content), formats=FILE_KINDS) as image:
                width, height = image.size
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise invalid(
                f"An image has too many pixels: {max_pixels:,} are allowed."
            ) from None
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
            raise invalid(
                "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP "
                "required."
            ) from None
        count += width * height
        if count > max_pixels:
            raise invalid(
                f"The images have too many pixels: {count:,}, and "
                f"{max_pixels:,} are allowed."
            )
    return count
