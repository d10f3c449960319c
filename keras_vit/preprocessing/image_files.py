"""Reading image files with Pillow."""

import os
import typing

import numpy as np

from keras_vit.arguments import as_size
from keras_vit.preprocessing.settings import (
    INTERPOLATIONS,
    Preprocessing,
    preprocessing_of,
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
            frames, the first is used.
        channels: 3 for colours, or 1 for grey levels.
        image_size: (H, W) to resize the image to, bilinear with antialiasing,
            ignoring its aspect ratio. None keeps the size of the file.
        model: A VisionTransformer to read the image for, in place of
            `channels` and `image_size`: the image is resized and cropped to
            its size as its `config.preprocessing` says.

    Raises:
        ValueError: If the file is not an image, is damaged or is too large, or
            `model` is not a VisionTransformer.
        OSError: If the file cannot be read.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not (isinstance(path, str | os.PathLike) or hasattr(path, "read")):
        raise ValueError(
            f"`path` must be that of an image file. Received: path={path!r}"
        )
    settings = PLAIN
    if model is not None:
        settings = preprocessing_of(model)
        channels, image_size = model.config.channels, model.config.image_size
    elif image_size is not None:
        image_size = as_size(image_size, "image_size")
    mode = pick({1: "L", 3: "RGB"}, channels, "channels")
    try:
        with Image.open(path) as image:
            # Phones store photos as the sensor saw them.
            image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I"):  # 16 bits, which convert() clips.
                image = Image.fromarray((np.asarray(image) // 256).astype("u1"))
            image = image.convert(mode)
            if image_size is not None:
                image = fit_image(image, image_size, settings)
            pixels = np.asarray(image)
    except UnidentifiedImageError:
        raise ValueError(f"Not an image that can be read: {path}") from None
    except (OSError, Image.DecompressionBombError) as error:
        if isinstance(error, OSError) and error.filename:
            raise  # It names the file itself.
        raise ValueError(
            f"Not an image that can be read: {path} ({error})"
        ) from None
    return pixels.reshape((*pixels.shape[:2], channels))


def fit_image(image, image_size: tuple[int, int], settings: Preprocessing):
    """Return an image of Pillow at the size of a model, resized and cropped.

    Differs: where torchvision would round half of an odd number of pixels to
        the even number, the crop begins at the smaller one, as in Hugging
        Face transformers.

    Args:
        image: The image, of mode "L" or "RGB".
        image_size: (height, width) of the model.
        settings: How its images are resized and cropped.
    """
    from PIL import Image

    height, width = settings.resized_size(image.size[::-1], image_size)
    name = INTERPOLATIONS[settings.interpolation]
    image = image.resize((width, height), Image.Resampling[name])
    top, left = ((a - b) // 2 for a, b in zip((height, width), image_size))
    return image.crop((left, top, left + image_size[1], top + image_size[0]))


PLAIN = Preprocessing()
