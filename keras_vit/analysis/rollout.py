"""Attention rollout, and what the head of a model reads of a matrix."""

from collections.abc import Iterable, Sequence

import numpy as np
from keras import ops

from keras_vit.arguments import as_rate
from keras_vit.layers.base import as_float32
from keras_vit.layers.kernels import without_gradients
from keras_vit.models import VisionTransformer, ViTConfig
from keras_vit.models.features import (
    grid_size_of,
    run_blocks,
    split_batches,
)
from keras_vit.models.vit import chosen_layer
from keras_vit.tables import pick

HEAD_FUSIONS = {"mean": ops.mean, "max": ops.max, "min": ops.min}


def attention_rollout(
    model: VisionTransformer,
    images,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    batch_size: int = 32,
) -> np.ndarray:
    """Return the contribution of each input token to each output token.

    Computes `roll_out` of all blocks without keeping their maps. `head_grid`
    turns the result into a map of the image.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`.
        returns: (B, T, T), float32; the last axis sums to one.

    Args:
        model: Any VisionTransformer.
        images: The images to compute attention for.
        head_fusion: See `roll_out`.
        discard_ratio: See `roll_out`.
        batch_size: Number of images in memory at a time.

    Example:
        >>> model = VisionTransformer(
        ...     ViTConfig(
        ...         width=24, depth=3, mlp_dim=48, num_heads=2, patch_size=8,
        ...         image_size=(32, 16),
        ...     )
        ... )
        >>> images = np.ones((5, 32, 16, 3))
        >>> rollout = attention_rollout(model, images)
        >>> head_grid(model, images, rollout).shape
        (5, 4, 2)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix D.8.
    """
    rollouts = []
    with without_gradients():
        for _, batch in split_batches(model, images, batch_size):
            steps = run_blocks(model, batch, range(model.config.depth))
            scores = (scores for _, scores in steps)
            prefix = model.config.num_prefix_tokens
            rollout = roll_out(scores, head_fusion, discard_ratio, prefix)
            rollouts.append(as_float32(rollout))
    return np.concatenate(rollouts)


def attention_grid(model: VisionTransformer, images):
    """Return the contribution of each patch to the input of the head.

    This is the part of the rollout that the head reads, see `head_grid`.
    Works inside a traced function, such as the signature of a SavedModel.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`; B may be unknown.
        returns: a tensor (B, h, w), float32. If the sum is below one, the rest
            is the contribution of the class token.

    Args:
        model: Any VisionTransformer.
        images: The images to compute attention for.
    """
    steps = run_blocks(model, images, range(model.config.depth))
    scores = (scores for _, scores in steps)
    return head_grid(model, images, roll_out(scores))


def roll_out(
    scores: Iterable,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    num_prefix_tokens: int = 1,
):
    """Multiply the attention of all blocks, including the shortcuts.

    R = A_L ... A_2 A_1, where A_l is the attention of block l, fused over its
    heads, plus the identity for the shortcut; each row is divided by its sum.

    Shapes:
        scores: tensors or arrays (B, K, T, T), first block first, or one
            array (layers, B, K, T, T).
        returns: a tensor (B, T, T), float32; the last axis sums to one.

    Args:
        scores: Attention probabilities. An iterator is read once.
        head_fusion: A key of HEAD_FUSIONS.
        discard_ratio: Share of the smallest entries of the fused attention of
            a block to set to zero, for each image. Equal entries are kept or
            set to zero together. The attention of a prefix token to itself is
            kept.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.

    Raises:
        ValueError: If an argument is unknown or out of range, or if there are
            no scores.

    Reference: Abnar and Zuidema 2020, arXiv:2005.00928, section 3; the paper
        fuses by the mean and discards nothing.
    """
    fuse = pick(HEAD_FUSIONS, head_fusion, "head_fusion")
    discard_ratio = as_rate(discard_ratio, "discard_ratio")
    rollout = None
    for layer_scores in scores:
        if len(layer_scores.shape) != 4:
            raise ValueError(
                "`scores` must have the shape (B, K, T, T) for each block. "
                f"Received: shape={tuple(layer_scores.shape)}"
            )
        step = fuse(ops.cast(layer_scores, "float32"), axis=1)  # (B, T, T)
        if discard_ratio:
            length = step.shape[-1]
            ranked = ops.reshape(step, (-1, length * length))
            first = int(discard_ratio * length * length)  # That is kept.
            least = ops.sort(ranked, axis=-1)[:, first, None, None]
            own = np.diag(np.arange(length) < num_prefix_tokens)
            is_kept = ops.logical_or(step >= least, own)
            step = ops.where(is_kept, step, 0.0)
        step = step + ops.eye(ops.shape(step)[-1], dtype="float32")
        step = step / ops.sum(step, axis=-1, keepdims=True)
        rollout = step if rollout is None else ops.matmul(step, rollout)
    if rollout is None:
        raise ValueError("`scores` must be of a block or more. Received: none")
    return rollout


def to_grid(
    matrix,
    grid_size: tuple,
    num_prefix_tokens: int = 1,
    tokens: Sequence[int] = (0,),
):
    """Return the row of the class token, or the mean row of other tokens.

    The columns of the patches are arranged as a grid.

    Shapes:
        matrix: (B, T, T), a row for each output token and a column for each
            input token, as from `attention_rollout` or `attention_relevance`.
        returns: (B, h, w), an array if `matrix` is one, else a tensor.

    Args:
        matrix: The weight of each input token in each output token.
        grid_size: (h, w), rows and columns of the grid of patches.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
        tokens: Indices of the tokens before the patches whose rows are
            averaged; () for the rows of all patches. See `head_tokens`.

    Raises:
        ValueError: If the matrix does not fit this grid, or has no such tokens.
    """
    h, w = grid_size
    length = matrix.shape[-1]
    if isinstance(h, int) and length not in (None, num_prefix_tokens + h * w):
        raise ValueError(
            "`matrix` must be of the prefix tokens and one token for each "
            f"patch of the grid. Received: {length} tokens, "
            f"grid_size={(h, w)}, num_prefix_tokens={num_prefix_tokens}"
        )
    if max(tokens, default=-1) >= num_prefix_tokens:
        raise ValueError(
            "`tokens` must be indices below `num_prefix_tokens`. Received: "
            f"tokens={tokens}, num_prefix_tokens={num_prefix_tokens}"
        )
    columns = matrix[:, :, num_prefix_tokens:]  # (B, T, N)
    if tokens:
        rows = ops.take(columns, list(tokens), axis=1)
    else:
        rows = columns[:, num_prefix_tokens:]
    grid = ops.reshape(ops.mean(rows, axis=1), (-1, h, w))
    if isinstance(matrix, np.ndarray):
        return ops.convert_to_numpy(grid)
    return grid


def head_grid(model: VisionTransformer, images, matrix):
    """Return the part of a matrix that the head of a model reads, as a grid.

    Calls `to_grid` with the grid and the pooling of `model`.

    Shapes:
        images: (B, H, W, C).
        matrix: (B, T, T), such as from `attention_rollout` or
            `attention_relevance`.
        returns: (B, h, w), an array if `matrix` is one, else a tensor.

    Args:
        model: Any VisionTransformer.
        images: The images of the matrix; only their size is used.
        matrix: The weight of each input token in each output token.
    """
    return to_grid(
        matrix,
        grid_size_of(model, images),
        model.config.num_prefix_tokens,
        head_tokens(model.config),
    )


def head_tokens(config: ViTConfig) -> tuple[int, ...]:
    """Return the indices of the tokens that the head reads before the patches.

    () if the head reads the patches. A model without pooling counts as one
    that reads its class token, if it has one.

    Args:
        config: The configuration of the model.
    """
    make = chosen_layer(config, "pooling")
    layer = make and make()
    if layer is None:
        return (0,) if config.use_class_token else ()
    return tuple(layer.read_tokens)
