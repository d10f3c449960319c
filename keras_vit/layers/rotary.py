"""Rotary positions: the angles by which attention turns queries and keys.

Each layer computes the angles of one grid of patches; `rotate_pairs` turns by
them. Prefix tokens have no position and are not turned.
"""

import math

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers import kernels
from keras_vit.layers.base import GridLayer, wide
from keras_vit.tables import check_name, pick


def rotate_pairs(x, rotation, pairs: str):
    """Turn each pair of features of queries or keys.

    (a, b) becomes (a cos - b sin, b cos + a sin).

    Shapes:
        x: (B, T, K, E).
        rotation: (2, T, 1, E) or (2, T, K, E), the cosines, then the sines.
        returns: (B, T, K, E).

    Args:
        x: Queries or keys.
        rotation: The output of a layer of ROTARY_POSITIONS.
        pairs: A key of PAIRS.

    Example:
        >>> quarter = np.stack([np.zeros((1, 1, 4)), np.ones((1, 1, 4))])
        >>> x = np.arange(1.0, 5.0).reshape(1, 1, 1, 4)
        >>> [float(y) for y in rotate_pairs(x, quarter, "halves")[0, 0, 0]]
        [-3.0, -4.0, 1.0, 2.0]

    Reference: Su et al. 2021, arXiv:2104.09864, eq. 34.
    """
    x = ops.convert_to_tensor(x)
    swap, each = pick(PAIRS, pairs, "pairs")
    cosines, sines = ops.unstack(ops.cast(rotation, x.dtype), 2)
    # The minus of -b is in the sines, which are constants of most graphs:
    # TFLite cannot negate integers.
    signs = each([-1.0], [1.0], x.shape[-1] // 2)
    signs = ops.convert_to_tensor(signs, x.dtype)
    return x * cosines + swap(x) * (sines * signs)


def swap_halves(x):
    """Return [b, a] for x = [a, b]."""
    first, second = ops.split(x, 2, axis=-1)
    return ops.concatenate([second, first], axis=-1)


def swap_neighbours(x):
    """Return [b, a, d, c, ...] for x = [a, b, c, d, ...]."""
    length, heads, size = ops.shape(x)[1:]
    x = swap_halves(kernels.reshape(x, (-1, size // 2, 2)))
    return kernels.reshape(x, (-1, length, heads, size))


# A pair consists of the features i and i + E/2, or 2i and 2i + 1: what swaps
# the features of each pair, and what lists a number for each, in Python as
# PyTorch compiles nothing of NumPy.
PAIRS = {
    "halves": (swap_halves, lambda a, b, count: a * count + b * count),
    "neighbours": (swap_neighbours, lambda a, b, count: (a + b) * count),
}


class RotaryPositions(GridLayer):
    """Compute the cosines and sines of the angles of each token.

    Subclasses define the angles. The class attribute `needs` lists the fields
    of ViTConfig that the constructor takes; `pairs` states which features turn
    together, `is_shared` whether all blocks have the same layer, and
    `needed_token` the token, such as "class", without which no model has the
    layer.

    Shapes:
        tokens: (B, T, D) with T = num_prefix_tokens + h * w; only the type of
            their numbers is read.
        features: (B, h * P, w * P, C), or None, see `GridLayer`.
        returns: (2, T, 1, E) or (2, T, K, E), the cosines, then the sines.

    Args:
        grid_size: (h, w), rows and columns of the grid.
        head_size: Size E of a head, a multiple of 4.
        num_prefix_tokens: Number of tokens before the patches.
        patch_size: Side P of a patch in `features`; unused without them.

    Raises:
        ValueError: If 4 does not divide `head_size`.
    """

    needs = ()
    pairs = "neighbours"
    is_shared = True
    needed_token = None

    def __init__(
        self,
        grid_size: tuple[int, int],
        head_size: int,
        num_prefix_tokens: int = 1,
        patch_size: int = 1,
        **kwargs,
    ):
        super().__init__(grid_size, num_prefix_tokens, patch_size, **kwargs)
        self.head_size = as_whole(head_size, "head_size")
        if head_size % 4:
            raise ValueError(
                "`head_size` must be a multiple of 4, for the sine and cosine "
                f"of two axes. Received: head_size={head_size}"
            )

    def call(self, tokens, features=None):
        grid_size, kind = self.grid_of(features), wide(self.compute_dtype)
        y, x = (ops.arange(size, dtype=kind) for size in grid_size)
        angles = self.angles(y[:, None], x[None], grid_size)
        angles = kernels.reshape(angles, (1, -1, *angles.shape[2:]))
        return self._rotation(angles)[:, 0]

    def at(self, coordinates, sizes):
        """Return the cosines and sines for patches at these places.

        Shapes:
            coordinates: (B, N, 2), the row and the column of each patch.
            sizes: (B, 1, 2), or broadcastable: the grid of each image.
            returns: (2, B, T, 1 or K, E).
        """
        y, x = coordinates[..., 0], coordinates[..., 1]
        sizes = sizes[..., 0], sizes[..., 1]
        return self._rotation(self.angles(y, x, sizes))

    def _rotation(self, angles):
        """Return the cosines and sines (2, B, T, 1 or K, E) of all tokens."""
        angles = self.add_prefix(angles)  # (B, T, 1 or K, E/2)
        if self.pairs == "neighbours":
            angles = ops.repeat(angles, 2, axis=-1)  # (B, T, 1 or K, E)
        else:
            angles = ops.concatenate([angles, angles], axis=-1)
        rotation = ops.stack([ops.cos(angles), ops.sin(angles)])
        return ops.cast(rotation, self.compute_dtype)

    def add_prefix(self, angles):
        """Return the angles (B, T, 1 or K, E/2), from those of the patches."""
        # An angle of zero turns nothing.
        prefix = (self.num_prefix_tokens, 0)
        return kernels.pad(angles, ((0, 0), prefix, (0, 0), (0, 0)))

    def angles(self, y, x, sizes: tuple):
        """Return the angles (..., 1 or K, E/2) of patches, in radians.

        Their rows and columns are broadcastable floats; `sizes` are (h, w),
        numbers or tensors.
        """
        raise NotImplementedError

    def compute_output_shape(self, tokens_shape, features_shape=None):
        return (2, tokens_shape[1], 1, self.head_size)


class AxisRotaryPositions(RotaryPositions):
    """Half of the angles are those of the row, half those of the column.

    They are t temperature^(-j / q), with q = E / 4 and a place t on the axis,
    which subclasses define.

    Args:
        temperature: Base of the frequencies.
    """

    axes = "yx"  # Or "xy", if the angles of the column come first.

    def __init__(self, temperature: float = 100.0, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def place(self, positions, size, axis: int):
        """Return t for positions on axis 0 or 1 of so many patches."""
        raise NotImplementedError

    def angles(self, y, x, sizes):
        steps = self.frequencies()
        rows, columns = (
            self.place(positions, ops.cast(size, positions.dtype), axis)
            for axis, (positions, size) in enumerate(zip((y, x), sizes))
        )
        rows, columns = rows[..., None] * steps, columns[..., None] * steps
        # Sums with zeros, as each part would have to be repeated otherwise.
        none, size = ((0, 0),) * (len(rows.shape) - 1), rows.shape[-1]
        before, after = (*none, (size, 0)), (*none, (0, size))
        if self.axes == "xy":
            before, after = after, before
        both = kernels.pad(rows, after) + kernels.pad(columns, before)
        return ops.expand_dims(both, -2)  # (..., 1, E/2)

    def frequencies(self):
        """Return temperature^(-j / q) for j = 0 ... q - 1, q = E / 4."""
        kind = wide(self.compute_dtype)
        steps = ops.arange(self.head_size // 4, dtype=kind)
        factor = -math.log(self.temperature) * 4 / self.head_size
        return ops.exp(steps * factor)


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialRotaryPositions(AxisRotaryPositions):
    """Angles that grow with the row and the column of a patch.

    t is the index of the row or column plus `offset`. With a `reference_size`,
    t is scaled to a grid of that size, so that another resolution has the same
    range of angles.

    Args:
        temperature: Base of the frequencies.
        axes: "yx" if the angles of the row come first, "xy" otherwise.
        reference_size: (rows, columns) that t is scaled to, or None.
        offset: Added to the indices.

    Reference: Heo et al. 2024, arXiv:2403.13298, section 3; Fang et al. 2023,
        arXiv:2303.11331, for the reference size.
    """

    needs = (
        *("rotary_temperature", "rotary_axes"),
        *("rotary_reference_size", "rotary_offset"),
    )

    def __init__(
        self,
        temperature: float = 100.0,
        axes: str = "yx",
        reference_size: tuple[int, int] | None = None,
        offset: float = 0.0,
        **kwargs,
    ):
        super().__init__(temperature, **kwargs)
        check_name(("yx", "xy"), axes, "axes")
        self.axes = axes
        self.reference_size = reference_size and tuple(reference_size)
        self.offset = offset

    def place(self, positions, size, axis):
        positions = positions + self.offset
        if self.reference_size is None:
            return positions
        return positions / size * float(self.reference_size[axis])


@keras.saving.register_keras_serializable(package="keras_vit")
class CenteredRotaryPositions(AxisRotaryPositions):
    """Angles of the centres of the patches, for an image from -1 to 1.

    t is 2 pi times the coordinate of the centre.

    Reference: Simeoni et al. 2025, arXiv:2508.10104, section 3.2 (DINOv3).
    """

    needs = ("rotary_temperature",)
    pairs = "halves"

    def place(self, positions, size, axis):
        return (positions + 0.5) / size * 2.0 - 1.0

    def frequencies(self):
        return 2 * math.pi * super().frequencies()


@keras.saving.register_keras_serializable(package="keras_vit")
class RoundedRotaryPositions(CenteredRotaryPositions):
    """Angles of `CenteredRotaryPositions`, with periods rounded to bfloat16.

    The files of the code of DINOv3 hold such periods, temperature^(j / q);
    those of timm and Hugging Face hold none, and their code does not round.
    """

    def frequencies(self):
        periods = rotary_periods(self.head_size, self.temperature)
        periods = periods.astype(ml_dtypes.bfloat16)
        periods = periods.astype(wide(self.compute_dtype))
        return 2 * math.pi * ops.convert_to_tensor(1 / periods)


def rotary_periods(head_size: int, temperature: float) -> np.ndarray:
    """Return temperature^(j / q) for j = 0 ... q - 1, q = head_size / 4."""
    steps = np.arange(head_size // 4) * 4 / head_size
    return np.float32(temperature**steps)


@keras.saving.register_keras_serializable(package="keras_vit")
class MixedRotaryPositions(RotaryPositions):
    """Learned angles, each from the row and the column, for each head.

    The angle of a patch in column x and row y is x f + y g, with learned f and
    g for each head and pair of features.

    Args:
        num_heads: Number K of heads.

    Reference: Heo et al. 2024, arXiv:2403.13298, section 3 (RoPE-Mixed).
    """

    needs = ("num_heads",)
    is_shared = False

    def __init__(self, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")

    def build(self, tokens_shape, features_shape=None):
        shape = (2, self.num_heads, self.head_size // 2)
        self.frequency = self.add_weight(
            name="frequency",
            shape=shape,
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            # Autocast would round it, and the angles of far patches with it.
            autocast=False,
        )

    def angles(self, y, x, sizes):
        frequency = ops.cast(self.frequency, y.dtype)
        x_frequency, y_frequency = ops.unstack(frequency, 2)  # (K, E/2)
        x = x[..., None, None] * x_frequency
        return x + y[..., None, None] * y_frequency

    def compute_output_shape(self, tokens_shape, features_shape=None):
        return (2, tokens_shape[1], self.num_heads, self.head_size)


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassRotaryPositions(AxialRotaryPositions):
    """Angles of `AxialRotaryPositions`, and learned ones of the first token.

    Attention pairs the features of the first half of a head with those of the
    second.

    Reference: An et al. 2024, arXiv:2407.17331 (MLCD); Hugging Face's
        MLCDVisionModel.
    """

    needs = ("rotary_temperature",)
    pairs = "halves"
    needed_token = "class"

    def build(self, tokens_shape, features_shape=None):
        self.class_angles = self.add_weight(
            name="class_angles",
            shape=(1, self.head_size // 2),
            initializer="zeros",
            autocast=False,
        )

    def add_prefix(self, angles):
        first = ops.zeros_like(angles[:, :1])
        first = first + ops.cast(self.class_angles, first.dtype)
        others = ((0, 0), (self.num_prefix_tokens - 1, 0), (0, 0), (0, 0))
        return ops.concatenate([first, kernels.pad(angles, others)], axis=1)


# Kind -> a layer of `RotaryPositions`.
ROTARY_POSITIONS = {
    "none": None,
    "axial": AxialRotaryPositions,
    "axial_class": ClassRotaryPositions,
    "centered": CenteredRotaryPositions,
    "centered_bfloat16": RoundedRotaryPositions,
    "mixed": MixedRotaryPositions,
}
