"""Reading image files with Pillow."""

import contextlib
import os
import typing
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.arguments import as_size, as_whole, check_pixel_range
from keras_vit.preprocessing.description import (
    Preprocessing,
    area_weights,
    cut_size,
    preprocessing_of,
    resized_size,
)


def read_image(
    path: str | os.PathLike | typing.BinaryIO,
    channels: int = 3,
    image_size: tuple[int, int] | None = None,
    model=None,
    pixel_range: tuple[float, float] | None = None,
) -> np.ndarray:
    """Return the pixels of an image file, turned upright. Needs Pillow.

    Shapes:
        returns: (H, W, C), uint8, which `preprocess_input` normalises.

    Args:
        path: Any image that Pillow reads, or an open file of one. Of several
            frames, the first is used; of transparent pixels, their colour.
            Or a .npy file of an array (H, W, C) or (H, W).
        channels: 3 for colours, 1 for grey levels, or 4 for colours and
            opacity. Of a file of so many grey frames, such as a stack of
            TIFF, each is a channel if they are not 1 or 3.
        image_size: (H, W) to resize the image to, bilinear with antialiasing,
            ignoring its aspect ratio. None keeps the size of the file.
        model: A VisionTransformer to read the image for, in place of
            `channels` and `image_size`: the image is resized and cropped to
            its size as its `config.preprocessing` says.
        pixel_range: The numbers that are black and white in a file of more
            than 8 bits. Default: that of `model`, or 0 and 65535 of 16 bits.

    Raises:
        ValueError: If the file is not an image, is damaged or is too large, has
            not so many channels, has pixels of floats or of 32 bits without a
            `pixel_range`, or `model` is not a VisionTransformer.
        OSError: If the file cannot be read.
    """
    from PIL import UnidentifiedImageError

    if not (isinstance(path, str | os.PathLike) or hasattr(path, "read")):
        raise ValueError(
            f"`path` must be that of an image file. Received: path={path!r}"
        )
    settings = Preprocessing()
    if model is not None:
        settings = preprocessing_of(model)
        channels, image_size = model.config.channels, model.config.image_size
        pixel_range = pixel_range or settings.pixel_range
    elif image_size is not None:
        image_size = as_size(image_size, "image_size")
    channels = as_whole(channels, "channels")
    if pixel_range is not None:
        pixel_range = check_pixel_range(pixel_range)
    name = getattr(path, "name", path) if hasattr(path, "read") else path
    try:
        images = _read_parts(path, channels, pixel_range)
        if image_size is not None:
            steps = settings.steps(image_size)
            images = [apply_steps(image, steps) for image in images]
        pixels = np.dstack([np.asarray(image) for image in images])
    except UnidentifiedImageError:
        raise ValueError(f"Not an image that can be read: {name}") from None
    except Exception as error:  # Of damaged files, Pillow raises any kind.
        if isinstance(error, OSError) and error.filename:
            raise  # It names the file itself.
        raise ValueError(
            f"Not an image that can be read: {name} "
            f"({str(error) or type(error).__name__})"
        ) from None
    return pixels


NUMPY_START = b"\x93NUMPY"  # The first bytes of a .npy file.


def _read_parts(path, channels, pixel_range):
    """Return upright images of Pillow, which together have the channels."""
    from PIL import Image

    file = contextlib.nullcontext(path)
    if not hasattr(path, "read"):
        file = open(path, "rb")
    with file as opened:
        start = opened.read(len(NUMPY_START))
        opened.seek(0)
        if start == NUMPY_START:
            return _split_array(np.load(opened), channels, pixel_range)
        with Image.open(opened) as image:
            if pixel_range is not None and ";16" in str(image.tile):
                if not image.mode.startswith("I"):
                    raise ValueError(
                        "Pillow reads 8 of the 16 bits of its colours; with "
                        "`pixel_range`, save it as .npy"
                    )
            frames = getattr(image, "n_frames", 1)
            mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
            is_grey = len(image.getbands()) == 1
            if channels not in (1, 3) and is_grey and frames == channels:
                parts = []
                for index in range(frames):
                    image.seek(index)
                    image.load()
                    part = with_eight_bits(turn_upright(image), pixel_range)
                    parts.append(part.convert("L"))
                return parts
            if mode is None and frames == 1:
                mode = {"LA": "LA"}.get(image.mode) if channels == 2 else None
            if mode is None:
                raise ValueError(
                    f"`channels` must be those of the file. Received: "
                    f"channels={channels}, {frames} frames of {image.mode}"
                )
            image.load()
            image = with_eight_bits(turn_upright(image), pixel_range)
            image = image.convert(mode)
            # Pillow would weigh the others by the last band when it resizes.
            return image.split() if mode in ("LA", "RGBA") else [image]


def _split_array(array, channels, pixel_range):
    """Return the channels of an array (H, W, C) as images of Pillow."""
    from PIL import Image

    array = array[..., None] if array.ndim == 2 else array
    if channels == 3 and array.shape[-1] == 1:
        array = array.repeat(3, -1)  # Grey, as of any file.
    if array.ndim != 3 or array.shape[-1] != channels or 0 in array.shape:
        raise ValueError(
            "`channels` must be those of the file. Received: "
            f"channels={channels}, an array of the shape {array.shape}"
        )
    if array.dtype != np.uint8:
        if array.dtype.kind not in "iuf":
            raise ValueError(f"its numbers are of the type {array.dtype}")
        if pixel_range is None:
            raise ValueError(NO_RANGE.format(array.dtype))
        array = scale_pixels(array, pixel_range)
    return [Image.fromarray(part) for part in np.moveaxis(array, -1, 0)]


NO_RANGE = (
    "its numbers, of the type {}, have no known white: `pixel_range` says "
    "which are black and white"
)


def scale_pixels(
    pixels: np.ndarray, pixel_range: tuple[float, float]
) -> np.ndarray:
    """Return numbers as uint8, 0 and 255 at the ends of a range and beyond.

    Computed in float32, as in a graph. NaN is black.
    """
    low, high = map(np.float32, pixel_range)
    shares = (pixels.astype("float32") - low) / (high - low)
    shares = np.nan_to_num(np.clip(shares, 0, 1))
    return np.rint(shares * np.float32(255)).astype("uint8")


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


def with_eight_bits(image, pixel_range: tuple[float, float] | None = None):
    """Return an image of Pillow with at most 8 bits for each number.

    Args:
        image: The image.
        pixel_range: The numbers that are black and white, if it has more bits.

    Raises:
        ValueError: If the file does not state which numbers are black and
            white.
    """
    from PIL import Image

    if not image.mode.startswith(("I", "F")):
        return image
    tags = getattr(image, "tag_v2", {})  # Of TIFF.
    bits, *_ = tags.get(BITS_PER_SAMPLE, (16,))
    if pixel_range is not None:
        pixels = scale_pixels(np.asarray(image), pixel_range)
    elif image.mode == "F" or (tags and image.mode == "I"):
        raise ValueError(NO_RANGE.format(f"{image.mode!r} of Pillow"))
    else:
        pixels = np.clip(np.asarray(image) >> (bits - 8), 0, 255).astype("u1")
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        pixels = 255 - pixels
    return Image.fromarray(pixels)


# The filters of Pillow, by the method of a step.
FILTERS = {"antialias": "BILINEAR", "bicubic": "BICUBIC"}


def apply_steps(image, steps: Iterable[Mapping]):
    """Return an image of Pillow, resized and cropped.

    Differs: where torchvision would round half of an odd number of pixels to
        the even number, the crop begins at the smaller one, as in Hugging
        Face transformers.

    Args:
        image: The image, of mode "L" or "RGB".
        steps: Those of a `Preprocessing`.
    """
    for step in steps:
        height, width = cut_size(step, image.size[::-1])
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
        if "method" in step:
            size = resized_size(step, (height, width))
            image = resize(image, size, step["method"])
    return image


def resize(image, size: tuple[int, int], method: str):
    """Return an image of Pillow at another size, (height, width).

    Args:
        image: The image, of mode "L" or "RGB".
        size: (height, width).
        method: That of a step, one of INTERPOLATIONS.
    """
    from PIL import Image

    if method in FILTERS:
        return image.resize(size[::-1], Image.Resampling[FILTERS[method]])
    # The box of Pillow counts a pixel of two areas in one of them alone.
    pixels = np.asarray(image)
    for axis, side in enumerate(size):
        pixels = np.moveaxis(pixels, axis, 0)
        means = []
        for weights in area_weights(len(pixels), side):
            used = np.flatnonzero(weights)
            part = slice(used[0], used[-1] + 1)
            means.append(np.tensordot(weights[part], pixels[part], 1))
        pixels = np.moveaxis(np.stack(means), 0, axis)
    return Image.fromarray(np.rint(pixels).astype("uint8"))
