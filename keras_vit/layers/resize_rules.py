"""The rules by which libraries resize position tables and patch kernels.

Every rule is linear and separable: it is one matrix for each axis. RESIZES
maps the name of a rule to it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from keras import ops

from keras_vit.tables import pick


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
        reads_two: Whether a graph computes each position from the two old ones
            around it, instead of multiplying by the matrix.
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
    reads_two: bool = False
    has_growing_distances: bool = False

    def __call__(
        self, new: int, old: int, whole: float | None = None
    ) -> np.ndarray:
        """Return the matrix that resizes an axis.

        Shapes: returns: (new, old).

        Args:
            new: Number of positions after resizing.
            old: Number of positions before resizing.
            whole: What the axis is resized to, see `whole_sizes`; of it, the
                first `new` positions are kept. Default: `new`.
        """
        index = np.arange(new, dtype="float64")
        return self.weights(index, whole or new, old, np)

    def whole_sizes(self, sizes, olds, backend=ops) -> list:
        """Return the size to which each axis is resized before it is cropped.

        Args:
            sizes: The sizes after resizing, numbers or tensors.
            olds: The sizes before resizing.
            backend: `keras.ops`, or `numpy`.
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
    "official": ResizeRule(_triangle, 1, is_aligned=True, reads_two=True),
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
    """Resize the two leading axes of an array.

    Shapes: grid: (h, w, D). returns: (h', w', D).

    Args:
        grid: An array of floats.
        sizes: (h', w').
        method: A key of RESIZES.
    """
    rule = RESIZES[method]
    rows, columns = (
        rule(new, old, whole)
        for new, old, whole in zip(
            sizes, grid.shape, rule.whole_sizes(sizes, grid.shape[:2], np)
        )
    )
    return multiply_axes(rows, grid, columns)


def multiply_axes(
    rows: np.ndarray, grid: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Multiply the two leading axes of an array by a matrix each.

    Shapes:
        rows: (h', h). grid: (h, w, D). columns: (w', w).
        returns: (h', w', D), of the type of `grid`.
    """
    product = np.einsum(
        "ih,hwd,jw->ijd", rows, grid.astype("float64"), columns, optimize=True
    )
    return product.astype(grid.dtype)


def inverse_patch_resize(new: int, old: int, method: str) -> np.ndarray:
    """Return the matrix that resizes one axis of a patch kernel.

    It is the transposed pseudo-inverse of the resize of a patch: a resized
    patch and a resized kernel have the product of the patch and the kernel,
    exactly if the patch is enlarged and as closely as possible otherwise.

    Shapes: returns: (new, old).

    Args:
        new: Side of a patch after resizing, in pixels.
        old: Side of a patch before resizing.
        method: A key of RESIZES: the rule for resizing images.

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.4.
    """
    rule = pick(RESIZES, method, "patch_resize")
    return np.linalg.pinv(rule(new, old)).T


def resize_patch_kernel(
    kernel: np.ndarray, size: int, method: str
) -> np.ndarray:
    """Resize a patch kernel so that a resized patch gives the same token.

    The kernel is multiplied by the pseudo-inverse of the resize of a patch. So
    for larger patches, the enlarged image has the same tokens as the original,
    whereas a plain resize of the kernel would scale them.

    Shapes: kernel: (P, P, C, D). returns: (P', P', C, D).

    Args:
        kernel: Kernel of the patch encoder.
        size: Side P' of a patch, in pixels.
        method: Assumed rule for resizing images, a key of RESIZES: "bilinear"
            in FlexiViT, "bicubic_antialias" in timm.

    Reference: Beyer et al. 2023, FlexiViT, arXiv:2212.08013, section 3.4.
    """
    # The resize of a patch is a Kronecker product, and so is its
    # pseudo-inverse: each axis can be inverted separately.
    inverse = inverse_patch_resize(size, kernel.shape[0], method)
    resized = np.einsum(
        "ip,jq,pqcd->ijcd",
        inverse,
        inverse,
        kernel.astype("float64"),
        optimize=True,
    )
    return resized.astype(kernel.dtype)
