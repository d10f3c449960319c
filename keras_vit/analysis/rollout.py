"""Attention rollout: the combined attention of all blocks."""

from collections.abc import Iterable, Sequence

import numpy as np
from keras import ops

from keras_vit.layers.dtypes import as_float32
from keras_vit.layers.kernels import without_gradients
from keras_vit.models import VisionTransformer, ViTConfig
from keras_vit.models.features import (
    grid_size_of,
    split_batches,
    yield_scores,
)
from keras_vit.models.vit import pooling
from keras_vit.tables import pick


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
    with without_gradients():
        return np.concatenate(
            [
                as_float32(_roll_out(model, batch, head_fusion, discard_ratio))
                for _, batch in split_batches(model, images, batch_size)
            ]
        )


def attention_grid(
    model: VisionTransformer,
    images,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
):
    """Return the contribution of each patch to the input of the head.

    This is the part of the rollout that the head reads: the row of the class
    token or, if the head pools patches, the mean of their rows. Works inside
    a traced function, such as the signature of a SavedModel.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`; B may be unknown.
        returns: a tensor (B, h, w), float32. If the sum is below one, the rest
            is the contribution of the class token.

    Args:
        model: Any VisionTransformer.
        images: The images to compute attention for.
        head_fusion: See `roll_out`.
        discard_ratio: See `roll_out`.
    """
    rollout = _roll_out(model, images, head_fusion, discard_ratio)
    return head_grid(model, images, rollout)


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
    if not 0 <= discard_ratio < 1:
        raise ValueError(
            "`discard_ratio` must be in [0, 1). "
            f"Received: discard_ratio={discard_ratio}"
        )
    rollout = None
    for layer_scores in scores:
        if len(layer_scores.shape) != 4:
            raise ValueError(
                "`scores` must have the shape (B, K, T, T) for each block. "
                f"Received: shape={tuple(layer_scores.shape)}"
            )
        step = fuse(ops.cast(layer_scores, "float32"), axis=1)  # (B, T, T)
        if discard_ratio:
            step = _discard(step, discard_ratio, num_prefix_tokens)
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
    from_patches: bool = False,
    prefix_rows: Sequence[int] = (0,),
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
        from_patches: Whether to average the rows of the patches instead of
            those of `prefix_rows`. See `pools_patches`.
        prefix_rows: Indices of tokens before the patches, whose rows are
            averaged. Default: the class token. See `read_prefix`.

    Raises:
        ValueError: If the matrix does not fit this grid, or if there is no
            class token.
    """
    h, w = grid_size
    length = matrix.shape[-1]
    if isinstance(h, int) and length not in (None, num_prefix_tokens + h * w):
        raise ValueError(
            "`matrix` must be of the prefix tokens and one token for each "
            f"patch of the grid. Received: {length} tokens, "
            f"grid_size={(h, w)}, num_prefix_tokens={num_prefix_tokens}"
        )
    if not from_patches and num_prefix_tokens < 1:
        raise ValueError(
            "Without a class token, `from_patches` must be True. Received: "
            f"num_prefix_tokens={num_prefix_tokens}, from_patches=False"
        )
    columns = matrix[:, :, num_prefix_tokens:]  # (B, T, N)
    if from_patches:
        rows = columns[:, num_prefix_tokens:]
    else:
        rows = ops.take(columns, list(prefix_rows), axis=1)
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
        from_patches=pools_patches(model),
        prefix_rows=read_prefix(model.config),
    )


def read_prefix(config: ViTConfig) -> tuple[int, ...]:
    """Return the indices of the tokens that a head reads before the patches.

    Meaningful unless the head reads the patches, see `pools_patches`; of
    "token_and_avg", it is the class token alone.

    Args:
        config: The configuration of the model.
    """
    layer = pooling(config)
    return (layer and layer.read_tokens) or (0,)


def pools_patches(model: VisionTransformer) -> bool:
    """Return whether the head reads the patches instead of tokens before them.

    For a model without pooling, return whether it has no class token.

    Args:
        model: Any VisionTransformer.
    """
    layer = pooling(model.config)
    if layer is None:
        return not model.config.use_class_token
    return not layer.read_tokens


def _roll_out(model, images, head_fusion, discard_ratio):
    return roll_out(
        (scores for _, scores in yield_scores(model, images)),
        head_fusion,
        discard_ratio,
        model.config.num_prefix_tokens,
    )


def _discard(attention, ratio, num_prefix_tokens):
    length = ops.shape(attention)[-1]  # A tensor for a dynamic image size.
    count = length * length
    if isinstance(count, int):
        dropped = int(ratio * count)
    else:
        dropped = ops.cast(ratio * ops.cast(count, "float64"), "int32")
    ranked = ops.sort(ops.reshape(attention, (-1, count)), axis=-1)
    smallest = ops.take(ranked, dropped, axis=-1)[:, None, None]  # Kept.
    token = ops.arange(length)
    own = ops.logical_and(
        token[:, None] == token[None], token[:, None] < num_prefix_tokens
    )
    return ops.where(ops.logical_or(attention >= smallest, own), attention, 0.0)


HEAD_FUSIONS = {"mean": ops.mean, "max": ops.max, "min": ops.min}
