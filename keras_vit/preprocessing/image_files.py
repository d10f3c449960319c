"""Reading image files with Pillow."""

import os
import typing
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.arguments import as_size
from keras_vit.preprocessing.description import (
    INTERPOLATIONS,
    METHODS,
    Preprocessing,
    cut_size,
    preprocessing_of,
    resized_size,
)
from keras_vit.tables import pick


def read_image(
    path: str | os.PathLike | typing.BinaryIO,
    channels: int = 3,
    image_size: tuple[int, int] | None = None,
    model=None,
) -> np.ndarray:
    """Return the pixels of an image file, turned upright. Needs Pillow.

    Shapes:
        returns: (H, W, C), uint8, which `preprocess_input` normalises.

    Args:
        path: Any image that Pillow reads, or an open file of one. Of several
            frames, the first is used; of transparent pixels, their colour.
        channels: 3 for colours, 1 for grey levels, or 4 for colours and
            opacity.
        image_size: (H, W) to resize the image to, bilinear with antialiasing,
            ignoring its aspect ratio. None keeps the size of the file.
        model: A VisionTransformer to read the image for, in place of
            `channels` and `image_size`: the image is resized and cropped to
            its size as its `config.preprocessing` says.

    Raises:
        ValueError: If the file is not an image, is damaged or is too large, has
            pixels of floats or of 32 bits, whose white is not known, or `model`
            is not a VisionTransformer.
        OSError: If the file cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    if not (isinstance(path, str | os.PathLike) or hasattr(path, "read")):
        raise ValueError(
            f"`path` must be that of an image file. Received: path={path!r}"
        )
    settings = Preprocessing()
    if model is not None:
        settings = preprocessing_of(model)
        channels, image_size = model.config.channels, model.config.image_size
    elif image_size is not None:
        image_size = as_size(image_size, "image_size")
    mode = pick({1: "L", 3: "RGB", 4: "RGBA"}, channels, "channels")
    name = getattr(path, "name", path) if hasattr(path, "read") else path
    try:
        with Image.open(path) as image:
            image.load()
            image = with_eight_bits(turn_upright(image)).convert(mode)
            if image_size is not None:
                image = apply_steps(image, settings.steps(image_size))
            pixels = np.asarray(image)
    except UnidentifiedImageError:
        raise ValueError(f"Not an image that can be read: {name}") from None
    except Exception as error:  # Of damaged files, Pillow raises any kind.
        if isinstance(error, OSError) and error.filename:
            raise  # It names the file itself.
        raise ValueError(
            f"Not an image that can be read: {name} "
            f"({str(error) or type(error).__name__})"
        ) from None
    return pixels.reshape((*pixels.shape[:2], channels))


def turn_upright(image):
    """Return an image of Pillow as it is meant to be seen.

    Phones store photos as the sensor saw them, and say so in Exif or XMP data.
    """
    from PIL import ExifTags, Image

    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # The data are damaged, not the picture.
        orientation = None
    if not isinstance(orientation, int):  # Exif states a whole number.
        return image
    turns = Image.Transpose
    turn = {
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_270,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_90,
    }.get(orientation)
    return image if turn is None else image.transpose(turn)


# Tags of TIFF, and a value of the second one.
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0


def with_eight_bits(image):
    """Return an image of Pillow with at most 8 bits for each number.

    Raises:
        ValueError: If the file does not state which numbers are black and
            white.
    """
    from PIL import Image

    if not image.mode.startswith(("I", "F")):
        return image
    tags = getattr(image, "tag_v2", {})  # Of TIFF.
    bits, *_ = tags.get(BITS_PER_SAMPLE, (16,))
    if image.mode == "F" or (tags and image.mode == "I"):
        raise ValueError(
            f"its numbers, {image.mode!r} of Pillow, have no known white; save "
            "it with 8 or 16 bits for a pixel"
        )
    pixels = np.clip(np.asarray(image) >> (bits - 8), 0, 255).astype("u1")
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        pixels = 255 - pixels
    return Image.fromarray(pixels)


FILTERS = {METHODS[name]: INTERPOLATIONS[name] for name in METHODS}


def apply_steps(image, steps: Iterable[Mapping]):
    """Return an image of Pillow, resized and cropped.

    Differs: where torchvision would round half of an odd number of pixels to
        the even number, the crop begins at the smaller one, as in Hugging
        Face transformers.

    Args:
        image: The image, of mode "L" or "RGB".
        steps: Those of a `Preprocessing`.
    """
    from PIL import Image

    for step in steps:
        height, width = cut_size(step, image.size[::-1])
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
        if "method" in step:
            height, width = resized_size(step, (height, width))
            kind = Image.Resampling[FILTERS[step["method"]]]
            image = image.resize((width, height), kind)
    return image
