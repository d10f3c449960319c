"""The rules by which libraries resize position tables and patch kernels.

Every rule is linear and separable: it is one matrix for each axis. RESIZES
maps the name of a rule to it.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from keras import ops

from keras_vit.layers import kernels
from keras_vit.layers.base import as_floats, wide
from keras_vit.tables import check_name, pick


@dataclasses.dataclass(frozen=True)
class ResizeRule:
    """A rule that computes the positions of a resized axis from the old ones.

    Args:
        kernel: Maps distances and a module with NumPy's functions to weights.
        support: Distance beyond which the kernel is zero.
        is_antialiased: Whether the kernel is stretched when shrinking; the
            weights inside the axis are scaled to sum to one, as in Pillow.
            Without it, samples beyond the border repeat the border.
        is_aligned: Whether the first and last positions coincide, instead of
            the borders of the cells around them.
        is_square: Whether the grid is first resized to a square of its longer
            side, of which the rest is cut off.
        offset: Added to the new sizes of a grid that changes, so that all
            positions move a little towards the first.
        has_growing_distances: Whether a table of distances is resized as if
            the old distances became farther apart the larger they are, see
            `resize_distances`; otherwise, it is resized bilinearly.
    """

    kernel: Callable
    support: int
    is_antialiased: bool = False
    is_aligned: bool = False
    is_square: bool = False
    offset: float = 0.0
    has_growing_distances: bool = False

    def __call__(
        self, new: int, old: int, whole: float | None = None
    ) -> np.ndarray:
        """Return the matrix (new, old) that resizes an axis.

        `whole` is what the axis is resized to, see `whole_sizes`; of it, the
        first `new` positions are kept. Default: `new`.
        """
        index = np.arange(new, dtype="float64")
        return self.weights(index, whole or new, old, np)

    def whole_sizes(self, sizes, olds, backend=ops) -> list:
        """Return the size to which each axis is resized before it is cropped.

        Sizes are numbers or tensors; `backend` is `keras.ops` or `numpy`.
        """
        sizes = list(sizes)
        is_known = all(isinstance(size, int) for size in sizes)
        if self.is_square and len(sizes) > 1:
            longest = max(sizes) if is_known else backend.maximum(*sizes)
            return [longest] * len(sizes)
        if not self.offset or (is_known and sizes == list(olds)):
            return sizes
        if is_known:
            return [size + self.offset for size in sizes]
        sizes = [backend.cast(size, "float32") for size in sizes]
        change = sum(backend.abs(n - old) for n, old in zip(sizes, olds))
        offset = self.offset * backend.minimum(change, 1.0)
        return [size + offset for size in sizes]

    def weights(self, index, new, old: int, backend=ops):
        """Return the weights of the old positions in the new ones.

        Shapes:
            index, new: of one shape, or broadcastable.
            returns: (..., old).

        Args:
            index: Positions after resizing, as floats.
            new: Number of positions after resizing; need not be whole.
            old: Number of positions before resizing.
            backend: `keras.ops`, or `numpy`.
        """
        if self.is_aligned:
            # Multiplying before dividing keeps whole positions exact.
            centres = index * (old - 1.0) / backend.maximum(new - 1.0, 1.0)
        else:
            centres = (index + 0.5) * old / new - 0.5
        reach = 0 if self.is_antialiased or self.is_aligned else self.support
        sources = backend.arange(-reach, old + reach, dtype="float32")
        distances = backend.expand_dims(centres, -1) - sources
        if self.is_antialiased:
            stretch = backend.maximum(old / new, 1.0)
            distances = distances / backend.expand_dims(stretch, -1)
            weights = self.kernel(distances, backend)
            return weights / backend.sum(weights, axis=-1, keepdims=True)
        weights = self.kernel(distances, backend)
        return _repeat_border(weights, reach, backend) if reach else weights


def _repeat_border(weights, reach, backend):
    """Add the weights of `reach` positions beyond each border to the border."""
    total = backend.sum(weights, axis=-1, keepdims=True)
    if weights.shape[-1] == 2 * reach + 1:
        return total
    inside = weights[..., reach + 1 : -reach - 1]
    first = backend.sum(weights[..., : reach + 1], axis=-1, keepdims=True)
    last = backend.sum(weights[..., -reach - 1 :], axis=-1, keepdims=True)
    return backend.concatenate([first, inside, last], axis=-1)


def _triangle(x, backend):
    return backend.maximum(1.0 - backend.abs(x), 0.0)


def _keys(slope):
    """Return Keys' cubic kernel; `slope` is its slope at one."""

    def kernel(x, backend):
        x = backend.abs(x)
        near = ((slope + 2) * x - (slope + 3)) * x * x + 1
        far = ((slope * x - 5 * slope) * x + 8 * slope) * x - 4 * slope
        far = backend.where(x < 2, far, 0.0)
        return backend.where(x < 1, near, far)

    return kernel


RESIZES = {
    # The official code, big_vision and vit-keras: scipy.ndimage.zoom(order=1).
    "official": ResizeRule(_triangle, 1, is_aligned=True),
    # timm's reader of .npz, FlexiViT, tf.image.resize.
    "bilinear": ResizeRule(_triangle, 1),
    # RADIO; the second for two of timm's models.
    "bilinear_square": ResizeRule(_triangle, 1, is_square=True),
    "official_square": ResizeRule(
        _triangle, 1, is_aligned=True, is_square=True
    ),
    # Hugging Face: PyTorch's bicubic.
    "bicubic": ResizeRule(_keys(-0.75), 2),
    # DINO and DINOv2 without registers: PyTorch's bicubic, by the factor
    # (new + 0.1) / old.
    "bicubic_offset": ResizeRule(_keys(-0.75), 2, offset=0.1),
    # timm: PyTorch's bicubic with antialias, which is Pillow's.
    "bicubic_antialias": ResizeRule(
        _keys(-0.5), 2, is_antialiased=True, has_growing_distances=True
    ),
    "bicubic_antialias_square": ResizeRule(
        _keys(-0.5), 2, is_antialiased=True, is_square=True
    ),
    # SigLIP 2 in Hugging Face, JAX.
    "bilinear_antialias": ResizeRule(_triangle, 1, is_antialiased=True),
}


def resize_grid(grid: np.ndarray, sizes: tuple, method: str) -> np.ndarray:
    """Resize the two leading axes of an array, by a key of RESIZES."""
    rule = RESIZES[method]
    rows, columns = (
        rule(new, old, whole)
        for new, old, whole in zip(
            sizes, grid.shape, rule.whole_sizes(sizes, grid.shape[:2], np)
        )
    )
    return multiply_axes(rows, grid, columns)


def resize_positions(
    table: np.ndarray, old_grid: tuple, new_grid: tuple, method: str
) -> np.ndarray:
    """Resize the rows of a position table to another grid of patches.

    Shapes: table: (T, D), the rows of the patches last. returns: (T', D).

    Args:
        table: Position embeddings; rows before the grid are kept.
        old_grid: (h, w) of the table.
        new_grid: (h, w) to resize to.
        method: A key of RESIZES.

    Example:
        >>> table = np.array([[9.0], [0.0], [1.0], [2.0]])
        >>> resize_positions(table, (1, 3), (1, 5), "official").ravel().tolist()
        [9.0, 0.0, 0.5, 1.0, 1.5, 2.0]
    """
    check_name(RESIZES, method, "position_resize")
    if tuple(old_grid) == tuple(new_grid):
        return table
    num_patches = math.prod(old_grid)
    prefix, grid = table[:-num_patches], table[-num_patches:]
    width = table.shape[-1]
    grid = resize_grid(grid.reshape(*old_grid, width), new_grid, method)
    return np.concatenate([prefix, grid.reshape(-1, width)])


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Change the number of input channels of the first kernel.

    For one channel, the kernels of all channels are summed, so a grey image
    gives the same result as its copies in all channels. For other numbers, the
    channels are repeated cyclically and scaled, so that the sum over the
    channels keeps its size approximately.

    Shapes: kernel: (P, P, C, D). returns: (P, P, C', D).
    """
    old = kernel.shape[2]
    if channels == old:
        return kernel
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    turn = np.arange(channels) % old
    return kernel[:, :, turn] * kernel.dtype.type(old / channels)


def multiply_axes(
    rows: np.ndarray, grid: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Multiply each of the two leading axes of an array by a matrix.

    Shapes:
        rows: (h', h). grid: (h, w, D). columns: (w', w). returns: (h', w', D).
    """
    product = np.einsum(
        "ih,hwd,jw->ijd", rows, grid.astype("float64"), columns, optimize=True
    )
    return product.astype(grid.dtype)


def inverse_patch_resize(new: int, old: int, method: str) -> np.ndarray:
    """Return the matrix (new, old) that resizes one axis of a patch kernel.

    It is the transposed pseudo-inverse of the resize of a patch: a resized
    patch and a resized kernel have the product of the patch and the kernel,
    exactly if the patch is enlarged and as closely as possible otherwise.

    Args:
        new: Side of a patch after resizing, in pixels.
        old: Side of a patch before resizing.
        method: A key of RESIZES: the rule for resizing images.

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.4.
    """
    return np.linalg.pinv(pick(RESIZES, method, "patch_resize")(new, old)).T


def resize_patch_kernel(
    kernel: np.ndarray, size: int, method: str
) -> np.ndarray:
    """Resize a patch kernel so that a resized patch gives the same token.

    A plain resize of the kernel would scale the tokens; see
    `inverse_patch_resize`.

    Shapes: kernel: (P, P, C, D). returns: (P', P', C, D).

    Args:
        kernel: Kernel of the patch encoder.
        size: Side P' of a patch, in pixels.
        method: Assumed rule for resizing images, a key of RESIZES: "bilinear"
            in FlexiViT, "bicubic_antialias" in timm.
    """
    # The resize of a patch is a Kronecker product, and so is its
    # pseudo-inverse: each axis can be inverted separately.
    inverse = inverse_patch_resize(size, kernel.shape[0], method)
    flat = kernel.reshape(*kernel.shape[:2], -1)
    resized = multiply_axes(inverse, flat, inverse)
    return resized.reshape(size, size, *kernel.shape[2:])


def resize_position_grid(table, sizes: tuple, method: str = "official"):
    """Resize the leading axes of a position table.

    The default is bilinear with aligned corners: row i of n' rows reads the
    old table at i (n - 1) / (n' - 1). The official code calls
    scipy.ndimage.zoom(order=1), which computes the same, except that for some
    sizes scipy writes zeros to the last row and column. Resizing to the same
    size changes nothing.

    Shapes:
        table: (n_1, ..., n_k, ...). returns: (*sizes, ...).

    Args:
        table: An array or tensor.
        sizes: The new n_1 ... n_k, integers or scalar integer tensors.
        method: A key of RESIZES.
    """
    rule = pick(RESIZES, method, "method")
    table = as_floats(table)
    wholes = rule.whole_sizes(sizes, table.shape[: len(sizes)])
    for axis, (size, whole) in enumerate(zip(sizes, wholes)):
        old = table.shape[axis]
        if isinstance(size, int) and isinstance(whole, (int, float)):
            if size == whole == old:
                continue
            matrix = rule(size, old, whole)
        else:  # In a graph that learns the size when it runs.
            index = ops.arange(size, dtype=wide(table.dtype))
            matrix = rule.weights(index, ops.cast(whole, index.dtype), old)
        matrix = ops.cast(matrix, table.dtype)  # (size, old)
        table = ops.tensordot(matrix, table, ((1,), (axis,)))
        table = ops.moveaxis(table, 0, axis)
    return table


def read_position_grid(table, coordinates, sizes, method: str = "official"):
    """Return the rows of a resized position table at chosen patches.

    It computes the rows of `resize_position_grid`, but only those of the
    chosen patches, so each image may have a grid of its own.

    Shapes:
        table: (h, w, D).
        coordinates: (B, N, 2).
        sizes: (B, 1, 2), or broadcastable.
        returns: (B, N, D).

    Args:
        table: An array or tensor of floats.
        coordinates: Row and column of each patch, as floats.
        sizes: Rows and columns of the grid of each image, as floats.
        method: A key of RESIZES.
    """
    rule = pick(RESIZES, method, "method")
    h, w, width = table.shape
    sizes = rule.whole_sizes((sizes[..., 0], sizes[..., 1]), (h, w))
    rows = rule.weights(coordinates[..., 0], sizes[0], h)  # (B, N, h)
    columns = rule.weights(coordinates[..., 1], sizes[1], w)  # (B, N, w)
    weights = rows[..., :, None] * columns[..., None, :]  # (B, N, h, w)
    length = ops.shape(coordinates)[1]
    weights = kernels.reshape(weights, (-1, length, h * w))
    flat = ops.reshape(table, (h * w, width))
    return ops.matmul(ops.cast(weights, table.dtype), flat)


def resize_distances(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    method: str,
) -> np.ndarray:
    """Resize a table of distances to another grid of patches.

    With timm's rule for position tables, "bicubic_antialias", it is resized as
    there: the old distances become farther apart the larger they are, and the
    new ones are between them. With any other, bilinearly, as in Hugging Face.

    Shapes:
        table: (R + S, K), with a row for each of R distances and S more.
        returns: (R' + S, K).

    Args:
        table: The weight of a `RelativePositionTable`.
        old_grid: (h, w), rows and columns of its grid.
        new_grid: (h', w') of the grid to resize to.
        method: A key of RESIZES.

    Reference: transformers, BeitRelativePositionBias; timm,
        resize_rel_pos_bias_table, which is that of BEiT's fine-tuning.
    """
    if tuple(old_grid) == tuple(new_grid):
        return table
    old, new = ([2 * n - 1 for n in grid] for grid in (old_grid, new_grid))
    count = math.prod(old)
    width = table.shape[-1]
    grid = table[:count].reshape(*old, width)
    if RESIZES[method].has_growing_distances:
        rows, columns = map(_geometric_matrix, new, old)
        grid = multiply_axes(rows, grid, columns)
    else:
        grid = resize_grid(grid, new, "bilinear")
    return np.concatenate([grid.reshape(-1, width), table[count:]])


def _geometric_matrix(new, old):
    """Return the matrix (new, old) that reads between geometric distances.

    The distances 1, 1 + q, 1 + q + q^2 ... have the ratio q with which the
    largest of them is that of the new table. It is searched from 1.01 to 1.5.
    """
    steps, low, high = np.arange(old // 2), 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (ratio**steps).sum() > new // 2:
            high = ratio
        else:
            low = ratio
    far = np.cumsum(ratio**steps)
    places = np.concatenate([-far[::-1], [0], far])
    wanted = np.arange(new) - new // 2
    rows = [np.interp(wanted, places, unit) for unit in np.eye(old)]
    return np.stack(rows, axis=1)
