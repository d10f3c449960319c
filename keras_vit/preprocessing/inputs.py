"""preprocess_input: from pixels to the numbers that a model reads."""

import sys

import keras
import numpy as np
from keras import ops

from keras_vit.preprocessing.description import (
    Mode,
    as_normalization,
    preprocessing_of,
)


def preprocess_input(
    x,
    data_format: str | None = None,
    mode: Mode | None = None,
    model=None,
):
    """Normalise pixels as a pretrained model expects them.

    Computes (x / 255 - mean) / deviation, with the constants of `model` or of
    `mode`. A model that was read from a checkpoint knows them; see
    `model.config.preprocessing`. The default scales pixels to [-1, 1], as for
    all models of `PRETRAINED` and many other released ViTs. DeiT, DINO and MAE
    need mode="imagenet"; CLIP and EVA need mode="clip". `x` itself is not
    changed, and its size is not: see `read_image` and the layer
    `ImagePreprocessor`.

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
            * "zero_one": to [0, 1]; the MIIL models, TIPSv2.
            * "satellite": those of DINOv3's satellite images.
        model: A VisionTransformer to normalise for, in place of `mode`.

    Returns:
        float32, or the dtype of `x` if it is a floating-point one.

    Raises:
        ValueError: If `data_format` or `mode` is unknown, `x` has another
            number of channels than `mode`, or `model` is not a
            VisionTransformer.

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
    if model is not None and mode is not None:
        raise ValueError(
            "`mode` and `model` both say how to normalise; pass one of them. "
            f"Received: mode={mode!r}, model={model.name!r}"
        )
    if model is not None:
        mode = preprocessing_of(model).normalization
    mean, deviation = map(
        np.asarray, as_normalization("vit" if mode is None else mode)
    )
    if is_tensor_of_tensorflow(x):
        cast = sys.modules["tensorflow"].cast
    elif ops.is_tensor(x) or isinstance(x, keras.KerasTensor):
        cast = ops.cast
    else:
        cast, x = np.ndarray.astype, np.asarray(x)
        if x.dtype.kind not in "biufV":  # The last: bfloat16 and its like.
            raise ValueError(f"`x` must be pixels. Received: {x.dtype} array")
    dtype = keras.backend.standardize_dtype(x.dtype)
    if "float" not in dtype:
        dtype = "float32"
        x = cast(x, dtype)
    scale, offset = 255.0 * deviation, mean / deviation
    if len(mean) == 1:
        return x / float(scale[0]) - float(offset[0])
    if data_format is None:
        data_format = keras.config.image_data_format()
    axes = 3 if data_format == "channels_first" else 1
    # A tensor of tf.data may have an unknown shape.
    known = getattr(x.shape, "rank", 0) is not None
    if known and tuple(x.shape)[-axes:][:1] not in ((None,), mean.shape):
        raise ValueError(
            f"`x` must have {len(mean)} channels with the mean "
            f"{mean.tolist()} and data_format={data_format!r}. Received: "
            f"shape={tuple(x.shape)}"
        )
    by_channel = (-1,) + (1,) * (axes - 1)
    scale, offset = scale.reshape(by_channel), offset.reshape(by_channel)
    return x / cast(scale, dtype) - cast(offset, dtype)


def is_tensor_of_tensorflow(x) -> bool:
    """Return whether `x` is such a tensor, as in tf.data on every backend.

    Keras' operations do not know it on JAX and PyTorch.
    """
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and tensorflow.is_tensor(x)
