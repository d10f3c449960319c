"""The learned positions and patch filters of a model: figure 7."""

from typing import NamedTuple

import numpy as np

from keras_vit.arguments import as_whole
from keras_vit.layers.base import as_float32
from keras_vit.models import VisionTransformer
from keras_vit.models.vit import check_vision_transformer

NUM_FILTERS = 28  # In figure 7 of the paper.


def position_similarity(model: VisionTransformer) -> np.ndarray:
    """Return the similarity of the position embeddings of any two patches.

    The similarity is the cosine of the two embeddings: figure 7, centre. The
    class token is ignored. Learned and fixed embeddings are treated equally.

    Shapes:
        returns: (h, w, h, w), float32; [y, x] compares the patch in row y
            and column x with all patches.

    Args:
        model: A VisionTransformer with a position embedding. With a dynamic
            image size, the stored size of the table is used.

    Raises:
        ValueError: If the model has no position embedding.

    Example:
        >>> model = VisionTransformer(
        ...     ViTConfig(
        ...         width=24, depth=1, mlp_dim=48, num_heads=2, patch_size=8,
        ...         image_size=(32, 16),
        ...     )
        ... )
        >>> position_similarity(model).shape
        (4, 2, 4, 2)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.5.
    """
    check_vision_transformer(model)
    if model.config.position_embedding == "none":
        raise ValueError(
            "`model` must have a position embedding. "
            "Received: position_embedding='none'"
        )
    grid_size = model.config.grid_size
    is_single = model.config.position_placement != "every_block"
    layer = model.get_layer("position_embedding" + ("" if is_single else "_00"))
    table = as_float32(layer.table(grid_size))
    rows = table[layer.num_prefix_tokens :]  # (N, D)
    rows = rows.astype("float64")
    # The similarity of a row of zeros to all others is 0.
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.maximum(length, np.finfo("float32").tiny)
    similarity = np.clip(rows @ rows.T, -1, 1).astype("float32")
    return similarity.reshape(*grid_size, *grid_size)


class PrincipalFilters(NamedTuple):
    """The principal components of the filters of a patch encoder.

    Shapes:
        filters: (num, P, P, C), each with norm one, most important first.
        explained_variance: (num,), their shares of the variance of all filters.
    """

    filters: np.ndarray
    explained_variance: np.ndarray


def embedding_filters(
    model: VisionTransformer, num: int = NUM_FILTERS
) -> PrincipalFilters:
    """Return the principal components of the filters of the patch encoder.

    Each of the D columns of the kernel is a filter. The mean of all filters is
    subtracted first, so D filters have at most D - 1 components; one more
    would be rounding noise. The sign of a component is arbitrary; it is chosen
    so that the entry with the largest absolute value is positive.

    Args:
        model: Any VisionTransformer. After a ResNet stem, the filters read
            the channels of the stem instead of those of the image.
        num: Largest number of components; the paper shows 28.

    Raises:
        ValueError: If `num` is not positive.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, figure 7, left.
    Differs: The paper does not state whether it subtracts the mean.
    """
    check_vision_transformer(model)
    num = as_whole(num, "num")
    kernel = as_float32(model.get_layer("patch_encoder").kernel)
    shape, width = kernel.shape[:-1], kernel.shape[-1]
    samples = kernel.reshape(-1, width).T.astype("float64")  # (D, P*P*C)
    num = max(min(num, width - 1, samples.shape[1]), 1)
    samples -= samples.mean(axis=0)
    _, values, components = np.linalg.svd(samples, full_matrices=False)
    components = components[:num]
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(num), largest])[:, None]
    variance = values**2 / max(np.sum(values**2), np.finfo("float64").tiny)
    return PrincipalFilters(
        components.reshape(num, *shape).astype("float32"),
        variance[:num].astype("float32"),
    )


def scale_filters(filters: np.ndarray) -> np.ndarray:
    """Return filters as pictures, each scaled to the range [0, 1].

    Shapes:
        filters: (num, P, P, C). returns: the same.

    Args:
        filters: Filters, such as those of `embedding_filters`. A constant
            filter becomes grey.
    """
    low = filters.min(axis=(1, 2, 3), keepdims=True)
    span = filters.max(axis=(1, 2, 3), keepdims=True) - low
    scaled = (filters - low) / np.where(span > 0, span, 1)
    return np.where(span > 0, scaled, 0.5).astype("float32")
