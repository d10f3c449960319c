"""The tokens after each block: their similarity between blocks and norms."""

import numpy as np
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.base import as_float32
from keras_vit.layers.kernels import without_gradients
from keras_vit.models import VisionTransformer
from keras_vit.models.features import (
    as_images,
    run_blocks,
    split_batches,
)

# The unbiased estimate divides by n - 3.
FEWEST_IMAGES = 4


def representation_similarity(
    model_a: VisionTransformer,
    model_b: VisionTransformer,
    images,
    batch_size: int = 64,
) -> np.ndarray:
    """Return the linear CKA between the tokens after any two blocks.

    The centred kernel alignment HSIC(a, b) / sqrt(HSIC(a, a) HSIC(b, b)) is
    invariant to rotating or scaling the features of an image, which are all
    its tokens. Each HSIC is an unbiased estimate, averaged over batches. So
    the result hardly depends on the batch size, and only one batch is in
    memory at a time. A value may be slightly below 0.

    Shapes:
        images: (B, H, W, C), preprocessed for both models.
        returns: (blocks of a, blocks of b), float32, at most 1.

    Args:
        model_a: Any VisionTransformer.
        model_b: Another model, or the same one to compare its blocks.
        images: Hundreds of images or more.
        batch_size: Number of images in memory at a time. A remainder is
            distributed over the batches.

    Raises:
        ValueError: If a batch has fewer than four images.

    Reference: Kornblith et al. 2019, arXiv:1905.00414; Nguyen et al. 2021,
        arXiv:2010.15327, section 2; Raghu et al. 2021, arXiv:2108.08810.
    """
    batch_size = as_whole(batch_size, "batch_size")
    for model in (model_a, model_b):
        images = as_images(images, model)
    if min(len(images), batch_size) < FEWEST_IMAGES:
        raise ValueError(
            f"`images` and `batch_size` must be {FEWEST_IMAGES} or more. "
            f"Received: {len(images)} images, batch_size={batch_size}"
        )
    products = norms_a = norms_b = 0.0
    parts = np.array_split(
        np.arange(len(images)), max(len(images) // batch_size, 1)
    )
    with without_gradients():
        for part in parts:
            batch = images[part[0] : part[-1] + 1]
            a = _centred_kernels(model_a, batch)
            b = a if model_b is model_a else _centred_kernels(model_b, batch)
            weight = 1 / (len(batch) * (len(batch) - 3))
            products += weight * (a @ b.T)
            norms_a += weight * np.sum(a * a, axis=1)
            norms_b += weight * np.sum(b * b, axis=1)
    scale = np.sqrt(np.outer(norms_a, norms_b))
    tiny = np.finfo("float64").tiny  # If tokens do not depend on the image.
    return (products / np.maximum(scale, tiny)).astype("float32")


def token_norms(
    model: VisionTransformer, images, batch_size: int = 32
) -> np.ndarray:
    """Return the norm of each token after each block.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`.
        returns: (layers, B, T), float32.

    Args:
        model: Any VisionTransformer.
        images: The images to compute tokens for.
        batch_size: Number of images in memory at a time.
    """
    parts = []
    with without_gradients():
        for _, batch in split_batches(model, images, batch_size):
            norms = [
                as_float32(ops.norm(ops.cast(tokens, "float32"), axis=-1))
                for tokens, _ in run_blocks(model, batch)
            ]
            parts.append(np.stack(norms))  # (layers, B, T)
    return np.concatenate(parts, axis=1)


def artefact_tokens(
    norms, num_prefix_tokens: int = 1, ratio: float = 3.0
) -> np.ndarray:
    """Return whether each patch token has an outlier norm.

    Large models store information about the whole image in the tokens of a
    few patches with little content. The norms of these tokens are several
    times larger than the others (tenfold in the paper), which disturbs
    attention maps. A patch token is an artefact if its norm is more than
    `ratio` times the median of the patches of its image.

    Shapes:
        norms: (..., T), as from `token_norms`. returns: (..., N), booleans.

    Args:
        norms: The norms of the tokens of images.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token. These tokens are ignored.
        ratio: Multiple of the median, above 1.

    Raises:
        ValueError: If `ratio` is not above 1, or if there are no patches.

    Reference: Darcet et al. 2024, arXiv:2309.16588, section 2.1.
    Differs: The paper uses a fixed norm, 150, for one model; a multiple of the
        median works for any model.
    """
    patches = np.asarray(norms)[..., num_prefix_tokens:]
    if not patches.shape[-1]:
        raise ValueError(
            "`norms` must be of more tokens than `num_prefix_tokens`. "
            f"Received: shape={np.shape(norms)}, "
            f"num_prefix_tokens={num_prefix_tokens}"
        )
    if not ratio > 1:
        raise ValueError(f"`ratio` must be above 1. Received: ratio={ratio}")
    return patches > ratio * np.median(patches, axis=-1, keepdims=True)


def _centred_kernels(model, images):
    """Return the kernels of all blocks, (layers, B * B), centred.

    The product of two is B (B - 3) times the unbiased HSIC.
    """
    kernels = []
    for tokens, _ in run_blocks(model, images):
        x = as_float32(tokens).reshape(len(images), -1)  # (B, T*D)
        # Centring does not change the result, but reduces rounding errors.
        x = x - x.mean(axis=0)
        kernel, n = np.float64(x @ x.T), len(images)
        # Szekely and Rizzo 2014, arXiv:1310.2926, definition 2. The product of
        # two is that of Song et al. 2012, eq. 5.
        np.fill_diagonal(kernel, 0)
        rows = kernel.sum(axis=1) / (n - 2)
        kernel = kernel - rows[:, None] - rows[None]
        kernel += rows.sum() / (n - 1)
        np.fill_diagonal(kernel, 0)
        kernels.append(kernel.ravel())
    return np.stack(kernels)
