"""Batches of images for functions that inspect a model."""

from collections.abc import Iterator

import numpy as np

from keras_vit.arguments import as_whole
from keras_vit.models.submodels import check_vision_transformer
from keras_vit.models.vision_transformer import VisionTransformer


def as_images(images, model: VisionTransformer | None = None):
    """Return images as an array or tensor that a model can read.

    Shapes:
        images: (B, H, W, C). returns: the same.

    Args:
        images: An array, a tensor, or lists of numbers.
        model: The model; None if any size will do.

    Raises:
        ValueError: If they are not images, or of another size than the model's,
            or it is not a VisionTransformer.
    """
    if model is not None:
        check_vision_transformer(model)
    if not hasattr(images, "shape"):
        try:
            images = np.asarray(images, "float32")
        except (TypeError, ValueError):
            raise ValueError(
                "`images` must be an array of numbers of the shape "
                f"(B, H, W, C). Received: {type(images).__name__}"
            ) from None
    shape = tuple(images.shape)
    if len(shape) != 4 or not shape[0]:
        raise ValueError(
            "`images` must have the shape (B, H, W, C) with B > 0. "
            f"Received: shape={shape}"
        )
    wanted = () if model is None else model.input_shape[1:]
    if any(want not in (None, size) for want, size in zip(wanted, shape[1:])):
        raise ValueError(
            "`images` must have the height, the width and the channels of the "
            f"model, {wanted}. Received: shape={shape}"
        )
    return images


def split_batches(
    model: VisionTransformer, images, batch_size: int
) -> Iterator[tuple[slice, object]]:
    """Yield the images in batches, as (slice, images[slice]).

    Args:
        model: The model that reads them.
        images: See `as_images`.
        batch_size: Largest number of images of a batch.

    Raises:
        ValueError: If the images are not those of the model, `batch_size` is
            not positive, or the model is not a VisionTransformer.
    """
    images = as_images(images, model)
    batch_size = as_whole(batch_size, "batch_size")
    for start in range(0, len(images), batch_size):
        part = slice(start, min(start + batch_size, len(images)))
        yield part, images[part]
