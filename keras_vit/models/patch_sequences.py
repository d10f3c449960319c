"""Images as sequences of patches, each with its place in the image."""

import math
import numbers
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.layers.dtypes import as_floats
from keras_vit.layers.resize_rules import inverse_patch_resize
from keras_vit.preprocessing.inputs import preprocess_input
from keras_vit.preprocessing.settings import INTERPOLATIONS, preprocessing_of


def cut_patches(
    images,
    patch_size: int,
    model_patch_size: int | None = None,
    method: str = "bilinear",
) -> dict:
    """Cut images into patches of any size for a FlexibleVisionTransformer.

    If the model has patches of another size, those of the images are brought
    to it by the pseudo-inverse of a resize. Their product with the kernel of
    the model is then that of the patches with the resized kernel of FlexiViT.
    What is left of an image at its right and lower border is not read.

    Shapes:
        images: (B, H, W, C), preprocessed.
        returns: "patches" (B, N, P * P * C), row by row, and "coordinates"
            (1, N, 2), the row and the column of each.

    Args:
        images: Images of one size.
        patch_size: Side of a patch in pixels.
        model_patch_size: Side P of a patch of the model. Default: `patch_size`.
        method: A key of RESIZES: the rule for resizing patches.

    Raises:
        ValueError: If the images are smaller than a patch, or `patch_size` is
            no positive whole number.

    Example:
        >>> found = models.cut_patches(np.zeros((1, 24, 36, 3)), 12, 8)
        >>> [tuple(found[key].shape) for key in ("patches", "coordinates")]
        [(1, 6, 192), (1, 6, 2)]

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.4.
    """
    side, channels = check_patch_size(patch_size), images.shape[-1]
    h, w = (size // side for size in images.shape[1:3])
    if not h or not w:
        raise ValueError(
            "`images` must have at least one patch. Received: image "
            f"{images.shape[1]}x{images.shape[2]}, patch_size={patch_size}"
        )
    x = as_floats(images[:, : h * side, : w * side])
    x = ops.reshape(x, (-1, h, side, w, side * channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4))  # (B, h, w, side, side*C)
    x = ops.reshape(x, (-1, h * w, side, side, channels))
    target = model_patch_size or side
    if target != side:
        matrix = inverse_patch_resize(side, target, method)  # (side, P)
        matrix = ops.convert_to_tensor(matrix, dtype=x.dtype)
        for _ in range(2):  # Each product moves its axis behind the others.
            x = ops.tensordot(x, matrix, ((2,), (0,)))
        x = ops.transpose(x, (0, 1, 3, 4, 2))  # (B, N, P, P, C)
    cells = np.stack(np.divmod(np.arange(h * w), w), axis=-1)
    return {
        "patches": ops.reshape(x, (-1, h * w, target * target * channels)),
        "coordinates": ops.convert_to_tensor(cells[None], dtype="int32"),
    }


def check_patch_size(patch_size: int) -> int:
    """Return a patch size; raise a ValueError unless it is one."""
    if not isinstance(patch_size, numbers.Integral) or patch_size < 1:
        raise ValueError(
            "`patch_size` must be a positive whole number of pixels. "
            f"Received: patch_size={patch_size!r}"
        )
    return int(patch_size)


def preprocess_patches(
    images: Sequence[np.ndarray],
    model: keras.Model,
    max_patches: int,
    patch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Return images of different sizes as one batch of patches.

    Each image is resized to the most patches that are allowed, nearly in its
    own aspect ratio, and normalised for the model. Shorter sequences are
    padded.

    Shapes:
        images: each (H, W, C), uint8, as `read_image` returns them.
        returns: "patches" (B, N, P * P * C), "coordinates" (B, N, 2), and
            "mask" (B, N), False for padding; N is `max_patches`.

    Args:
        images: The images, of any sizes.
        model: A VisionTransformer, or a FlexibleVisionTransformer of one.
        max_patches: Largest number of patches of an image.
        patch_size: Side of a patch in pixels. Default: that of the model.

    Raises:
        ValueError: If there is no image, or the images have other channels
            than the model.

    Reference: Beyer et al. 2023, arXiv:2212.08013, for patches of other sizes;
        Tschannen et al. 2025, SigLIP 2, arXiv:2502.14786, section 2.4.2
        (NaFlex).
    """
    settings, config = preprocessing_of(model), model.config
    side = config.patch_size if patch_size is None else patch_size
    rule = getattr(model, "patch_resize", "bilinear")
    check_patch_size(side)
    _check_max_patches(max_patches)
    if not len(images):
        raise ValueError("`images` must hold at least one image. Received: []")
    length = config.patch_size**2 * config.channels
    batch = {
        "patches": np.zeros((len(images), max_patches, length), "float32"),
        "coordinates": np.zeros((len(images), max_patches, 2), "int32"),
        "mask": np.zeros((len(images), max_patches), bool),
    }
    for index, image in enumerate(images):
        if image.ndim != 3 or image.shape[-1] != config.channels:
            raise ValueError(
                f"`images` must be (H, W, {config.channels}) each. Received: "
                f"shape={image.shape}"
            )
        size = fitting_size(image.shape[:2], side, max_patches)
        pixels = _resize(image, size, settings.interpolation)
        pixels = preprocess_input(pixels, "channels_last", model=model)
        found = cut_patches(pixels[None], side, config.patch_size, rule)
        count = found["patches"].shape[1]
        batch["mask"][index, :count] = True
        for key, value in found.items():
            value = ops.convert_to_numpy(value[0])
            batch[key][index, :count] = value
    return batch


def _check_max_patches(max_patches):
    if max_patches < 1:
        raise ValueError(
            f"`max_patches` must be positive. Received: {max_patches}"
        )


def _resize(image, size, interpolation):
    """Return (H, W, C) pixels at another size, by Pillow."""
    from PIL import Image

    method = Image.Resampling[INTERPOLATIONS[interpolation]]
    planes = [
        np.asarray(Image.fromarray(plane).resize(size[::-1], method))
        for plane in np.moveaxis(image, -1, 0)
    ]
    return np.stack(planes, axis=-1)


def fitting_size(
    image_size: tuple[int, int], patch_size: int, max_patches: int
) -> tuple[int, int]:
    """Return the largest size with at most so many patches, in pixels.

    Both sides are a whole number of patches, and their ratio is that of the
    image up to one patch.

    Args:
        image_size: (height, width) of the image.
        patch_size: Side of a patch.
        max_patches: Largest number of patches.

    Raises:
        ValueError: If `max_patches` is not positive.

    Example:
        >>> models.patch_sequences.fitting_size((480, 640), 16, 256)
        (224, 288)
    """
    _check_max_patches(max_patches)

    def grid_at(scale):
        return [
            max(math.ceil(side * scale / patch_size), 1) for side in image_size
        ]

    # By bisection with the bounds and the tolerance of SigLIP 2's code, which
    # gives the same sizes.
    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        middle = (low + high) / 2
        if math.prod(grid_at(middle)) <= max_patches:
            low = middle
        else:
            high = middle
    h, w = grid_at(low)
    return h * patch_size, w * patch_size
