"""Attention maps of a model, and the attention distances of its heads."""

from collections.abc import Sequence

import numpy as np

from keras_vit.layers.base import as_float32
from keras_vit.layers.kernels import without_gradients
from keras_vit.models import VisionTransformer
from keras_vit.models.features import (
    grid_size_of,
    run_blocks,
    split_batches,
)
from keras_vit.models.vit import block_indices, check_vision_transformer


def attention_maps(
    model: VisionTransformer,
    images,
    layers: Sequence[int] | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """Return the attention probabilities of blocks, as one array.

    `model` does not change. Only the maps of the requested blocks are kept,
    and blocks after the last of them do not run. For 128 images, the maps of
    a ViT-L/16 take 8 GB; `attention_rollout` and `attention_distances`
    compute summaries without keeping the maps.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`.
        returns: (layers, B, K, T, T), float32; the last axis sums to one.

    Args:
        model: Any VisionTransformer.
        images: The images to compute attention for.
        layers: Indices of blocks; negative indices count from the end. None
            for all blocks.
        batch_size: Number of images in memory at a time.

    Raises:
        ValueError: If `model` is not a VisionTransformer or does not have
            these blocks.

    Example:
        >>> model = VisionTransformer(
        ...     ViTConfig(
        ...         width=24, depth=3, mlp_dim=48, num_heads=2, patch_size=8,
        ...         image_size=(32, 16),
        ...     )
        ... )
        >>> attention_maps(model, np.ones((5, 32, 16, 3)), layers=[-1]).shape
        (1, 5, 2, 9, 9)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix D.8.
    """
    check_vision_transformer(model)
    indices = block_indices(model.config.depth, layers, "layers")
    maps = None
    with without_gradients():
        for part, batch in split_batches(model, images, batch_size):
            steps = run_blocks(model, batch, indices)
            for index, (_, scores) in enumerate(steps):
                if scores is None:
                    continue
                if maps is None:
                    shape = (len(indices), len(images), *scores.shape[1:])
                    maps = np.empty(shape, "float32")
                # An index may have been asked for twice.
                maps[np.equal(indices, index), part] = as_float32(scores)
    return maps


def mean_attention_distance(
    maps,
    grid_size: tuple[int, int],
    patch_size: int,
    renormalize: bool = False,
    num_prefix_tokens: int | None = None,
) -> np.ndarray:
    """Return the mean attention distance of each head, in pixels.

    For each query patch, the distances between its centre and the centres of
    all patches are weighted by its attention to them and summed. The result is
    the mean over queries and images, as in figures 7 and 11 of the paper.
    Tokens other than patches are ignored.

    Shapes:
        maps: (layers, B, K, T, T), as from `attention_maps`.
        returns: (layers, K), float32.

    Args:
        maps: Attention probabilities. Their last h * w tokens are patches.
        grid_size: (h, w), rows and columns of the grid of patches.
        patch_size: Image pixels from one patch to the next, which includes the
            stride of a ResNet stem.
        renormalize: Whether to divide each row by its total attention to the
            patches. Otherwise, attention to the class token counts as a
            distance of 0, as in the authors' code, so a head that attends
            mostly to the class token has a small distance.
        num_prefix_tokens: Number of tokens before the patches: the class
            token, registers and the like. Default: at most a class token.

    Raises:
        ValueError: If the maps do not fit this grid.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix D.7.
    """
    h, w = grid_size
    maps = np.asarray(maps, "float32")
    if maps.ndim != 5 or maps.shape[-1] != maps.shape[-2]:
        raise ValueError(
            "`maps` must have the shape (layers, B, K, T, T). "
            f"Received: shape={maps.shape}"
        )
    prefix = maps.shape[-1] - h * w
    expected = (0, 1) if num_prefix_tokens is None else (num_prefix_tokens,)
    if prefix not in expected:
        raise ValueError(
            "`grid_size` must be that of the maps: h * w patches after "
            f"{' or '.join(map(str, expected))} prefix tokens. Received: "
            f"grid_size={tuple(grid_size)}, maps of {maps.shape[-1]} tokens"
        )
    patches = maps[..., prefix:, prefix:]  # (layers, B, K, N, N)
    # The mean over images and queries of sums over keys.
    distances = patch_distances(grid_size, patch_size)
    weighed = np.einsum("lbkqt,qt->lbkq", patches, distances, optimize=True)
    if renormalize:
        # The distance of a row without attention to patches is 0.
        total = patches.sum(axis=-1)
        weighed = weighed / np.maximum(total, np.finfo("float32").tiny)
    return weighed.mean(axis=(1, 3)).astype("float32")


def patch_distances(grid_size: tuple[int, int], patch_size: int) -> np.ndarray:
    """Return the distances in pixels between any two patches, (N, N)."""
    places = patch_size * np.indices(grid_size).reshape(2, -1).T  # (N, 2)
    return np.linalg.norm(places[:, None] - places[None], axis=-1)


def attention_distances(
    model: VisionTransformer,
    images,
    renormalize: bool = False,
    batch_size: int = 32,
) -> np.ndarray:
    """Return the mean attention distance of each head of a model, in pixels.

    Computes `mean_attention_distance` of all blocks without keeping the maps.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`.
        returns: (layers, K), float32.

    Args:
        model: Any VisionTransformer.
        images: The images to compute attention for; the paper uses 128.
        renormalize: See `mean_attention_distance`.
        batch_size: Number of images in memory at a time.
    """
    check_vision_transformer(model)
    config = model.config
    total = np.zeros((config.depth, config.num_heads))
    with without_gradients():
        for _, batch in split_batches(model, images, batch_size):
            steps = run_blocks(model, batch, range(config.depth))
            for index, (_, scores) in enumerate(steps):
                mean = mean_attention_distance(
                    as_float32(scores)[None],
                    grid_size_of(model, batch),
                    config.patch_size * config.stem_stride,
                    renormalize,
                    config.num_prefix_tokens,
                )
                total[index] += mean[0] * len(batch)
    return (total / len(images)).astype("float32")
