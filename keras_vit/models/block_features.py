"""The patches after chosen blocks, as images of features."""

import numbers
from collections.abc import Iterable, Sequence

import keras
from keras import ops

from keras_vit.models.patch_grid import PatchGrid


def compute_block_features(
    model,
    images,
    blocks: Sequence[int] | None = None,
    as_grid: bool = True,
    norm: bool = True,
    with_prefix: bool = False,
) -> list:
    """Return the patches after blocks of a model.

    With symbolic images, the result is symbolic: part of a graph of layers,
    which can be trained, saved and exported.

    Shapes:
        images: (B, H, W, C).
        returns: (B, h, w, D) for each block, or (B, h * w, D).

    Args:
        model: A VisionTransformer.
        images: Images, or a symbolic tensor of them.
        blocks: Indices of the blocks, counted from 0; negative ones count from
            the end. Default: all blocks.
        as_grid: Whether the patches are arranged as in the image.
        norm: Whether the last norm of the model is applied to each, as far as
            it has one before its pooling.
        with_prefix: Whether to return pairs: the patches, and the tokens
            before them (B, P, D).

    Raises:
        ValueError: If `blocks` names no block, or one that is not there.

    Example:
        >>> model = VisionTransformer(VARIANTS["mu/16"].config)
        >>> images = np.zeros((2, 224, 224, 3), "float32")
        >>> [tuple(x.shape) for x in model.features(images, blocks=(0, -1))]
        [(2, 14, 14, 32), (2, 14, 14, 32)]
    """
    depth, prefix = model.config.depth, model.config.num_prefix_tokens
    layers = {layer.name: layer for layer in model.layers}
    outputs = []
    for index in _indices(blocks, depth):
        x = layers[f"block_{index % depth:02d}"].output
        if norm and "encoder_norm" in layers:
            x = layers["encoder_norm"](x)
        outputs.append(x)
    tokens = keras.Model(model.input, outputs)(images)
    tokens = tokens if isinstance(tokens, list) else [tokens]
    found = []
    for x in tokens:
        patches = x[:, prefix:]
        if as_grid:
            patches = _arrange(patches, images, model.config)
        found.append((patches, x[:, :prefix]) if with_prefix else patches)
    return found


def _indices(blocks, depth):
    """Return the indices of the blocks; raise a ValueError unless they are."""
    if blocks is None:
        return range(depth)
    chosen = tuple(blocks) if isinstance(blocks, Iterable) else ()
    if chosen and all(
        isinstance(index, numbers.Integral) and -depth <= index < depth
        for index in chosen
    ):
        return chosen
    raise ValueError(
        f"`blocks` must be from {-depth} to {depth - 1}, one or more in a "
        f"list. Received: blocks={blocks!r}"
    )


def _arrange(patches, images, config):
    """Return patches (B, h * w, D) as in the images, (B, h, w, D)."""
    if config.use_dynamic_image_size:
        stem_stride = config.stem_stride
        grid = PatchGrid(config.patch_size * stem_stride, stem_stride)
        return grid(patches, images)
    return ops.reshape(patches, (-1, *config.grid_size, patches.shape[-1]))
