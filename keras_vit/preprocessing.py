"""What stands before and after the model: pixels in, class names out.

No function needs a network.
"""

import functools
import importlib.resources
import os
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.tables import pick


def read_image(
    path: str | os.PathLike,
    channels: int = 3,
    image_size: tuple[int, int] | None = None,
) -> np.ndarray:
    """Return the pixels of an image file, turned upright. Needs Pillow.

    Shapes:
        returns: (H, W, C), uint8.

    Args:
        path: Any image that Pillow reads; the first frame of several.
        channels: 3, or 1 for shades of grey.
        image_size: (H, W) to resize it to, its proportions ignored; bilinear,
            with antialiasing. None for the size of the file.

    Raises:
        ValueError: If the file is no image, a damaged or an enormous one.
        OSError: If it cannot be read.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    mode = pick({1: "L", 3: "RGB"}, channels, "channels")
    try:
        with Image.open(path) as image:
            # Phones store pictures turned, with a note how to turn them back.
            image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I"):  # 16 bits, which convert() clips.
                image = Image.fromarray((np.asarray(image) // 256).astype("u1"))
            image = image.convert(mode)
            if image_size is not None:
                height, width = image_size
                size = (width, height)
                image = image.resize(size, Image.Resampling.BILINEAR)
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


def preprocess_input(x, data_format: str | None = None):
    """Scale pixels to [-1, 1], the range every released ViT was trained on.

    x / 127.5 - 1. The argument is left as it is.

    Shapes:
        x: any, usually (B, H, W, C). returns: the same, floats.

    Args:
        x: Pixels from 0 to 255, an array or a tensor.
        data_format: Only here for callers of `keras.applications`; the
            scaling is the same for both.

    Returns:
        float32, or the type of `x` if that is a floating-point one.

    Raises:
        ValueError: If `data_format` is no Keras data format.

    Example:
        >>> preprocess_input(np.array([0, 255], "uint8"))
        array([-1.,  1.], dtype=float32)
    """
    if data_format not in (None, "channels_first", "channels_last"):
        raise ValueError(
            "`data_format` must be None, 'channels_first' or 'channels_last'. "
            f"Received: data_format={data_format!r}"
        )
    is_tensor = ops.is_tensor(x) or isinstance(x, keras.KerasTensor)
    if not is_tensor:
        x = np.asarray(x)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if "float" not in dtype:
        x = ops.cast(x, "float32") if is_tensor else x.astype("float32")
    return x / 127.5 - 1.0


def decode_predictions(
    predictions, top: int = 5, class_names: Sequence[str] | None = None
) -> list[list[tuple[str, str, float]]]:
    """Name the highest scores of each image.

    Shapes:
        predictions: (B, C).

    Args:
        predictions: Scores, probabilities or logits, an array or a tensor.
        top: How many classes to return, at most.
        class_names: Names of the C classes; None for the 1000 classes of
            ImageNet (ILSVRC 2012) in their official order, named by their
            WordNet lemmas.

    Returns:
        For each image a list of (identifier, name, score), highest first.
        The identifier is the WordNet one of an ImageNet class, else the index.

    Raises:
        ValueError: If the predictions are not (B, C) or their classes are
            not as many as the names.

    Example:
        >>> decode_predictions(np.eye(1, 1000, 2), top=1)[0][0][:2]
        ('n01484850', 'great white shark, white shark, man-eater, ...')
    """
    if top < 1:
        raise ValueError(f"`top` must be 1 or more. Received: top={top}")
    scores = ops.convert_to_numpy(predictions)
    if scores.ndim != 2:
        raise ValueError(
            "`predictions` must have the shape (B, C). "
            f"Received: shape={scores.shape}"
        )
    classes = (
        imagenet_classes()
        if class_names is None
        else [(str(i), str(name)) for i, name in enumerate(class_names)]
    )
    if scores.shape[1] != len(classes):
        raise ValueError(
            f"`predictions` must have one column for each of {len(classes)} "
            "classes; pass `class_names` for classes of your own. "
            f"Received: shape={scores.shape}"
        )
    # As floats: minus the lowest integer is itself, minus zero is zero.
    order = np.argsort(-scores.astype("float64"), axis=1, kind="stable")
    order = order[:, :top]
    return [
        [(*classes[i], float(row[i])) for i in indices]
        for row, indices in zip(scores, order)
    ]


@functools.cache
def imagenet_classes() -> list[tuple[str, str]]:
    """Return (WordNet identifier, name) of the ImageNet classes, in order.

    Example:
        >>> imagenet_classes()[0]
        ('n01440764', 'tench, Tinca tinca')
    """
    file = importlib.resources.files("keras_vit") / "data" / "imagenet1k.tsv"
    lines = file.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]
