"""The patches after chosen blocks, as images of features."""

from collections.abc import Sequence

import keras
from keras import ops


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
        ValueError: If the model has no such block.

    Example:
        >>> model = VisionTransformer(VARIANTS["mu/16"].config)
        >>> images = np.zeros((2, 224, 224, 3), "float32")
        >>> [tuple(x.shape) for x in model.features(images, blocks=(0, -1))]
        [(2, 14, 14, 32), (2, 14, 14, 32)]
    """
    depth, prefix = model.config.depth, model.config.num_prefix_tokens
    chosen = range(depth) if blocks is None else blocks
    layers = {layer.name: layer for layer in model.layers}
    outputs = []
    for index in chosen:
        if not -depth <= index < depth:
            raise ValueError(
                f"`blocks` must be from {-depth} to {depth - 1}. Received: "
                f"blocks={blocks!r}"
            )
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
            height, width = _grid_of(model.config, images)
            shape = (-1, height, width, x.shape[-1])
            patches = ops.reshape(patches, shape)
        found.append((patches, x[:, :prefix]) if with_prefix else patches)
    return found


def _grid_of(config, images):
    """Return the rows and columns of the patches of these images."""
    if not config.use_dynamic_image_size:
        return config.grid_size
    stride = config.patch_size * config.stem_stride
    height, width = ops.shape(images)[1:3]
    return height // stride, width // stride
