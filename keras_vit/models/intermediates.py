"""The blocks of a Vision Transformer, run one by one."""

import operator
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_vit.models.submodels import check_vision_transformer
from keras_vit.models.vision_transformer import VisionTransformer


def attention_scores(
    model: VisionTransformer, images, layers: Sequence[int] | None = None
) -> list:
    """Return the attention probabilities of blocks, as tensors.

    Works on arrays, on tensors and inside a traced function, such as the
    signature of a SavedModel. The layers are those of `model`, called anew;
    blocks behind the last one asked for are not run.

    Shapes:
        images: (B, H, W, C), as `model` reads them; B may be unknown.
        returns: a tensor (B, K, T, T) for each of `layers`, in the compute
            type of the model. The last axis sums to one.

    Args:
        model: Any VisionTransformer.
        images: What it looks at.
        layers: Indices of blocks; negative ones count from the last. None for
            all.

    Raises:
        ValueError: If `model` is no VisionTransformer or has no such block.
    """
    indices = block_indices(model, layers)
    scores = dict(yield_scores(model, images, indices))
    return [scores[index] for index in indices]


def yield_scores(
    model: VisionTransformer, images, indices: Sequence[int]
) -> Iterator[tuple]:
    """Yield (index, probabilities) of the blocks `indices`, in rising order.

    Shapes:
        images: (B, H, W, C). yields: (B, K, T, T).
    """
    last = max(indices)
    tokens = tokens_before_blocks(model, images)
    for index in range(last):
        block = get_block(model, index)
        if index in indices:
            tokens, scores = block(
                tokens, training=False, return_attention_scores=True
            )
            yield index, scores
            del scores
        else:
            tokens = block(tokens, training=False)
    # Of the last one the MLP need not run.
    block = get_block(model, last)
    _, scores = block.attention(
        block.attention_norm(tokens),
        training=False,
        return_attention_scores=True,
    )
    yield last, scores


def yield_tokens(model: VisionTransformer, images) -> Iterator:
    """Yield the tokens (B, T, D) after each block.

    Shapes:
        images: (B, H, W, C). yields: (B, T, D).
    """
    tokens = tokens_before_blocks(model, images)
    for index in range(model.config.depth):
        tokens = get_block(model, index)(tokens, training=False)
        yield tokens


def tokens_before_blocks(model: VisionTransformer, images):
    """Return the tokens (B, T, D) that enter the first block."""
    check_vision_transformer(model)
    # A model of the same layers up to there. It calls none of them, so that
    # `model` remembers nothing of it.
    start = keras.Model(
        model.input, get_block(model, 0).input, name="before_blocks"
    )
    return start(images, training=False)


def layers_after_blocks(model: VisionTransformer) -> list:
    """Return the layers behind the last block, each of which reads the last."""
    last = get_block(model, model.config.depth - 1)
    return model.layers[model.layers.index(last) + 1 :]


def get_block(model: VisionTransformer, index: int):
    """Return block number `index`."""
    return model.get_layer(f"block_{index:02d}")


def block_indices(
    model: VisionTransformer, layers: Sequence[int] | None
) -> list[int]:
    """Return `layers` as indices from 0 on; None stands for all blocks."""
    check_vision_transformer(model)
    depth = model.config.depth
    if layers is None:
        return list(range(depth))
    try:
        indices = [operator.index(layer) for layer in layers]
    except TypeError:
        indices = []
    if not indices or not all(-depth <= i < depth for i in indices):
        raise ValueError(
            f"`layers` must be a list of indices from {-depth} to "
            f"{depth - 1}, for the model has {depth} blocks, or None for all "
            f"of them. Received: layers={layers!r}"
        )
    return [index % depth for index in indices]


def grid_size_of(model: VisionTransformer, images) -> tuple:
    """Return (h, w), the grid of the patches that `model` cuts `images` into.

    Shapes:
        images: (B, H, W, C).

    Args:
        model: Any VisionTransformer.
        images: An array or tensor. Only a model of dynamic image size asks
            for its size, which may be unknown while a function is traced.
    """
    check_vision_transformer(model)
    config = model.config
    if not config.use_dynamic_image_size:
        return config.grid_size
    # SAME padding of a stem rounds up.
    cells = [-(-n // config.stem_stride) for n in keras.ops.shape(images)[1:3]]
    return tuple(size // config.patch_size for size in cells)


def num_prefix_tokens_of(model: VisionTransformer) -> int:
    """Return the number of tokens before the patches."""
    return int(model.config.use_class_token)


def split_batches(images, batch_size: int) -> Iterator[tuple[slice, object]]:
    """Yield (slice, images of it), `batch_size` at a time.

    Raises:
        ValueError: If there are no images or `batch_size` is not positive.
    """
    if batch_size < 1:
        raise ValueError(
            "`batch_size` must be a positive number of images. "
            f"Received: batch_size={batch_size}"
        )
    if len(images.shape) != 4 or not len(images):
        raise ValueError(
            "`images` must have the shape (B, H, W, C) with B > 0. "
            f"Received: shape={tuple(images.shape)}"
        )
    for start in range(0, len(images), batch_size):
        part = slice(start, min(start + batch_size, len(images)))
        yield part, images[part]


def to_float32(x) -> np.ndarray:
    """Return a tensor of any floating type as a float32 array."""
    return keras.ops.convert_to_numpy(keras.ops.cast(x, "float32"))
