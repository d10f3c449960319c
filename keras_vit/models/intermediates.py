"""Intermediate results of a VisionTransformer: tokens and attention.

The functions call the layers of each block in inference mode, without dropout
and stochastic depth, and do not change the model.
"""

import operator
from collections.abc import Callable, Iterator, Sequence

import keras
from keras import ops

from keras_vit.layers.attention import attend_by_products
from keras_vit.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.models.position_inputs import position_layers
from keras_vit.models.submodels import check_vision_transformer
from keras_vit.models.vision_transformer import VisionTransformer


def attend_with_scores(
    attention: MultiHeadSelfAttention,
    tokens,
    mask=None,
    change_scores: Callable | None = None,
    rotation=None,
    bias=None,
    relative_keys=None,
) -> tuple:
    """Return the output of an attention layer and its probabilities.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T) or (B, T, T), True where a key may be attended to.
        returns: (B, T, D), and the attention probabilities (B, K, T, T),
            whose last axis sums to one.

    Args:
        attention: A built layer.
        tokens: The input of the layer.
        mask: See above; None attends to all keys.
        change_scores: Function that changes the probabilities before they
            weigh the values. The returned probabilities are the original ones.
        rotation: Rotary positions, see `MultiHeadSelfAttention`.
        bias: Relative positions, see there.
        relative_keys: The same in another form, see there.

    Example:
        >>> layer = layers.MultiHeadSelfAttention(num_heads=3)
        >>> layer.build((None, 5, 24))
        >>> _, scores = models.intermediates.attend_with_scores(
        ...     layer, np.ones((2, 5, 24), "float32")
        ... )
        >>> tuple(scores.shape)
        (2, 3, 5, 5)
    """
    tokens = ops.convert_to_tensor(tokens, attention.compute_dtype)
    qkv = attention.compute_qkv(tokens, rotation)
    if relative_keys is not None:
        bias = attention.add_relative_products(bias, qkv[0], relative_keys)
    x, scores = attend_by_products(
        *qkv,
        num_heads=attention.num_heads,
        mask=mask,
        bias=bias,
        dropout=change_scores,
    )
    return attention.project_out(x), scores


def run_with_scores(
    block: TransformerBlock,
    tokens,
    change_scores: Callable | None = None,
    position_rows=None,
    **positions,
) -> tuple:
    """Return the output of a block and its attention probabilities.

    Shapes:
        tokens: (B, T, D). returns: (B, T, D) and (B, K, T, T).

    Args:
        block: A built block.
        tokens: The input of the block.
        change_scores: See `attend_with_scores`.
        position_rows: See `TransformerBlock`.
        **positions: What its attention gets beside the tokens.
    """
    tokens = ops.convert_to_tensor(tokens, block.compute_dtype)
    tokens = _with_rows(tokens, position_rows)
    attended, scores = attend_with_scores(
        block.attention,
        block.attention_input(tokens),
        change_scores=change_scores,
        **positions,
    )
    return block.add_mlp(block.add_attended(tokens, attended)), scores


def attention_scores(
    model: VisionTransformer, images, layers: Sequence[int] | None = None
) -> list:
    """Return the attention probabilities of blocks, as tensors.

    Works on arrays, on tensors and inside a traced function, such as the
    signature of a SavedModel. Blocks after the last one in `layers` do not
    run.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`; B may be unknown.
        returns: a tensor (B, K, T, T) for each of `layers`, in the compute
            dtype of the model. The last axis sums to one.

    Args:
        model: Any VisionTransformer.
        images: The images to compute attention for.
        layers: Indices of blocks; negative indices count from the end. None
            for all blocks.

    Raises:
        ValueError: If `model` is not a VisionTransformer or does not have
            these blocks.
    """
    indices = block_indices(model, layers)
    scores = dict(yield_scores(model, images, indices))
    return [scores[index] for index in indices]


def yield_scores(
    model: VisionTransformer, images, indices: Sequence[int]
) -> Iterator[tuple]:
    """Yield (index, probabilities) of the blocks `indices`, in ascending order.

    Shapes:
        images: (B, H, W, C). yields: (B, K, T, T).
    """
    last = max(indices)
    tokens, positions = enter_blocks(model, images)
    for index in range(last):
        block = get_block(model, index)
        if index in indices:
            tokens, scores = run_with_scores(block, tokens, **positions[index])
            yield index, scores
            del scores
        else:
            tokens = block(tokens, **positions[index], training=False)
    # The MLP of the last block need not run.
    block, others = get_block(model, last), dict(positions[last])
    tokens = _with_rows(tokens, others.pop("position_rows", None))
    _, scores = attend_with_scores(
        block.attention, block.attention_input(tokens), **others
    )
    yield last, scores


def yield_tokens(model: VisionTransformer, images) -> Iterator:
    """Yield the tokens after each block.

    Shapes:
        images: (B, H, W, C). yields: (B, T, D).
    """
    tokens, positions = enter_blocks(model, images)
    for index, inputs in enumerate(positions):
        tokens = get_block(model, index)(tokens, **inputs, training=False)
        yield tokens


def enter_blocks(model: VisionTransformer, images) -> tuple:
    """Return the tokens before the first block, and all other block inputs.

    Shapes:
        images: (B, H, W, C).
        returns: (B, T, D), and for each block a dictionary of its other
            arguments, as `position_layers` names them.
    """
    check_vision_transformer(model)
    rows = position_layers(model.config)
    names = {name for row in rows for name in row.values()}
    # This model shares the layers without calling them again, so it leaves no
    # trace in `model`.
    start = keras.Model(
        model.input,
        {
            "tokens": block_tokens(get_block(model, 0)),
            **{name: model.get_layer(name).output for name in names},
        },
        name="before_blocks",
    )
    tensors = start(images, training=False)
    return tensors["tokens"], [
        {argument: tensors[name] for argument, name in row.items()}
        for row in rows
    ]


def block_tokens(block: TransformerBlock):
    """Return the symbolic tokens that enter a block."""
    inputs = block.input
    return inputs[0] if isinstance(inputs, list) else inputs


def layers_after_blocks(model: VisionTransformer) -> list:
    """Return the layers after the last block; each reads the one before."""
    last = get_block(model, model.config.depth - 1)
    return model.layers[model.layers.index(last) + 1 :]


def get_block(model: VisionTransformer, index: int):
    """Return block number `index`."""
    return model.get_layer(f"block_{index:02d}")


def block_indices(
    model: VisionTransformer, layers: Sequence[int] | None
) -> list[int]:
    """Return `layers` as indices from 0; None selects all blocks.

    Raises:
        ValueError: If `layers` is not a list of indices of blocks.
    """
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
            f"{depth - 1}, since the model has {depth} blocks, or None for "
            f"all of them. Received: layers={layers!r}"
        )
    return [index % depth for index in indices]


def grid_size_of(model: VisionTransformer, images) -> tuple:
    """Return (h, w), the grid of patches that `model` cuts `images` into.

    Shapes:
        images: (B, H, W, C).

    Args:
        model: Any VisionTransformer.
        images: An array or tensor. Its size is read only if `model` accepts
            any image size; while a function is traced, it may be unknown.
    """
    check_vision_transformer(model)
    config = model.config
    if not config.use_dynamic_image_size:
        return config.grid_size
    # SAME padding of a stem rounds up.
    cells = [-(-n // config.stem_stride) for n in ops.shape(images)[1:3]]
    return tuple(size // config.patch_size for size in cells)


def _with_rows(tokens, position_rows):
    return tokens if position_rows is None else tokens + position_rows
