"""The arithmetic of a Vision Transformer, in closed form."""

from keras_vit.models import ViTConfig

# The matrix product whose rate is taken as that of the machine: the first one
# of the MLP of B/16, on 8 images of 197 tokens.
MATRIX_SHAPE = (1576, 768, 3072)
# The backward pass has two products for each of the forward pass: one for the
# gradient of the input, one for that of the weights.
PASSES = {"forward": 1, "train": 3}


def matrix_flops(rows: int, inner: int, columns: int) -> int:
    """Return the FLOPs of (rows, inner) x (inner, columns).

    A multiplication and an addition count as two.
    """
    return 2 * rows * inner * columns


def forward_flops(config: ViTConfig) -> int:
    """Return the FLOPs of the matrix products for one image.

    With N patches of P * P * C numbers, T = N + 1 tokens of size D, a hidden
    size M and L blocks:

        patches     2 N P^2 C D
        block       2 T D (3 D + D)    query, key and value; output
                  + 4 T^2 D            query key^T; probabilities value
                  + 4 T D M            the two layers of the MLP
        head        2 D classes

    patches + L * block + head. Layer norms, softmax, GELU, biases and
    residual sums are left out: less than 2 % of the arithmetic, though more
    than that of the time. All heads together do the work of one of size D.

    Args:
        config: A model without a stem, with pooling of tokens.

    Example:
        >>> from keras_vit import VARIANTS
        >>> round(forward_flops(VARIANTS["B/16"].config) / 1e9, 1)
        35.1
    """
    rows, columns = config.grid_size
    tokens, width = count_tokens(config), config.width
    patch_features = config.patch_size**2 * config.channels
    block = (
        matrix_flops(tokens, width, 4 * width)
        + 2 * matrix_flops(tokens, width, tokens)
        + 2 * matrix_flops(tokens, width, config.mlp_dim)
    )
    return (
        matrix_flops(rows * columns, patch_features, width)
        + config.depth * block
        + matrix_flops(1, width, config.num_classes)
    )


def count_tokens(config: ViTConfig) -> int:
    """Return the number of tokens of an image."""
    rows, columns = config.grid_size
    return rows * columns + config.num_prefix_tokens


def num_parameters(config: ViTConfig) -> int:
    """Return the parameters of a ViT with a class token and a head.

    With the letters of `forward_flops`: those of the patches, the class token
    and the positions, of a block (two layer norms, four square projections,
    the MLP), of the last layer norm and the head.

    Args:
        config: A model without a stem, with pooling of the class token.

    Example:
        >>> from keras_vit import VARIANTS
        >>> num_parameters(VARIANTS["B/16"].config)
        86567656
    """
    rows, columns = config.grid_size
    width, mlp_dim = config.width, config.mlp_dim
    patches = (config.patch_size**2 * config.channels + 1) * width
    tokens = (1 + rows * columns + 1) * width
    block = (
        2 * 2 * width
        + 4 * (width + 1) * width
        + (width + 1) * mlp_dim
        + (mlp_dim + 1) * width
    )
    head = (width + 1) * config.num_classes
    return patches + tokens + config.depth * block + 2 * width + head


def step_flops(config: ViTConfig, task: str, batch_size: int) -> int:
    """Return the FLOPs of one step on a batch."""
    return PASSES[task] * batch_size * forward_flops(config)
