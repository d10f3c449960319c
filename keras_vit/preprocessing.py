"""Pre- and post-processing: from images to pixels, from scores to class names.

The functions need no network.
"""

import functools
import importlib.resources
import os
import sys
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
        path: Any image that Pillow reads. Of several frames, the first is used.
        channels: 3 for colours, or 1 for grey levels.
        image_size: (H, W) to resize the image to, bilinear with antialiasing,
            ignoring its aspect ratio. None keeps the size of the file.

    Raises:
        ValueError: If the file is not an image, is damaged or is too large.
        OSError: If the file cannot be read.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    mode = pick({1: "L", 3: "RGB"}, channels, "channels")
    try:
        with Image.open(path) as image:
            # Phones store photos as the sensor saw them.
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


def preprocess_input(
    x,
    data_format: str | None = None,
    mode: str | tuple[Sequence[float], Sequence[float]] = "vit",
):
    """Normalise pixels as a pretrained model expects them.

    Computes (x / 255 - mean) / deviation, with the constants of `mode`. The
    default scales pixels to [-1, 1], as for all models of `PRETRAINED` and
    most other released ViTs. DeiT, DINO and MAE need mode="imagenet"; CLIP and
    EVA need mode="clip". The `load_report` of a loaded model states the mode
    of its checkpoint. `x` itself is not changed.

    Shapes:
        x: any, usually (B, H, W, 3). returns: the same, floats.

    Args:
        x: Pixels from 0 to 255, an array or a tensor; also a tensor of
            `tf.data`, on any backend.
        data_format: Position of the channels, "channels_last" or
            "channels_first"; None for Keras' setting.
        mode: A key of NORMALIZATIONS, or (mean, deviation), each with one
            number for every channel, as fractions of 255:

            * "vit": to [-1, 1]; Google's models, SigLIP, timm's own.
            * "imagenet": mean and deviation of ImageNet; DeiT, DINO, MAE,
              I-JEPA.
            * "clip": mean and deviation of CLIP's training data; CLIP, EVA,
              Bamboo.
            * "zero_one": to [0, 1]; the MIIL models.

    Returns:
        float32, or the dtype of `x` if it is a floating-point one.

    Raises:
        ValueError: If `data_format` or `mode` is unknown, or `x` has another
            number of channels than `mode`.

    Example:
        >>> preprocess_input(np.array([0, 255], "uint8"))
        array([-1.,  1.], dtype=float32)
        >>> preprocess_input(np.zeros((1, 1, 3)), mode="imagenet").round(2)
        array([[[-2.12, -2.04, -1.8 ]]])
    """
    formats = (None, "channels_first", "channels_last")
    if data_format not in formats:
        raise ValueError(
            "`data_format` must be None, 'channels_first' or 'channels_last'. "
            f"Received: data_format={data_format!r}"
        )
    cast = _caster(x)
    if cast is _cast_array:
        x = np.asarray(x)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if "float" not in dtype:
        dtype = "float32"
        x = cast(x, dtype)
    scale, offset = _scale_and_offset(mode, x.shape, data_format)
    if isinstance(scale, np.ndarray):
        scale, offset = cast(scale, dtype), cast(offset, dtype)
    return x / scale - offset


def _caster(x):
    """Return a function that casts constants to the dtype for `x`."""
    tensorflow = sys.modules.get("tensorflow")
    # Keras does not know a tensor of tf.data on JAX and PyTorch.
    if tensorflow is not None and tensorflow.is_tensor(x):
        return tensorflow.cast
    if ops.is_tensor(x) or isinstance(x, keras.KerasTensor):
        return ops.cast
    return _cast_array


def _cast_array(x, dtype):
    return x.astype(dtype)


def _scale_and_offset(mode, shape, data_format):
    """Return the divisor of the pixels, and the offset to subtract then.

    Floats, or arrays that broadcast along the channels of `shape`.
    """
    mean, deviation = (
        pick(NORMALIZATIONS, mode, "mode") if isinstance(mode, str) else mode
    )
    if np.ndim(mean) == 0:
        return 255.0 * deviation, mean / deviation
    mean, deviation = np.asarray(mean), np.asarray(deviation)
    if mean.shape != deviation.shape or not (deviation > 0).all():
        raise ValueError(
            "`mode` must be a name or (mean, deviation), with one number for "
            "each channel and deviations greater than 0. "
            f"Received: mode={mode!r}"
        )
    if data_format is None:
        data_format = keras.config.image_data_format()
    axes = 3 if data_format == "channels_first" else 1
    # A tensor of tf.data may have an unknown shape.
    known = getattr(shape, "rank", 0) is not None
    if known and tuple(shape)[-axes:][:1] not in ((None,), mean.shape):
        raise ValueError(
            f"`x` must have {len(mean)} channels with mode={mode!r} and "
            f"data_format={data_format!r}. Received: shape={tuple(shape)}"
        )
    by_channel = (-1,) + (1,) * (axes - 1)
    mean, deviation = mean.reshape(by_channel), deviation.reshape(by_channel)
    return 255.0 * deviation, mean / deviation


def decode_predictions(
    predictions, top: int = 5, class_names: Sequence[str] | None = None
) -> list[list[tuple[str, str, float]]]:
    """Name the highest scores of each image.

    Shapes:
        predictions: (B, C).

    Args:
        predictions: Scores, probabilities or logits, an array or a tensor.
        top: Largest number of classes to return.
        class_names: Names of the C classes. Default: the 1000 classes of
            ImageNet (ILSVRC 2012) in their official order, with their WordNet
            lemmas as names.

    Returns:
        For each image, a list of (identifier, name, score), highest first. The
        identifier of an ImageNet class is that of WordNet; otherwise, it is
        the index.

    Raises:
        ValueError: If the predictions are not (B, C), or C is not the number
            of names.

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
    # As floats: negating the lowest integer would overflow.
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


# Mean and deviation of each channel, as fractions of 255; a single number
# applies to all channels.
NORMALIZATIONS = {
    "vit": (0.5, 0.5),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    ),
    "zero_one": (0.0, 1.0),
}
