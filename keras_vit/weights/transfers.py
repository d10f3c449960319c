"""Transfers: computing a weight of the model from the arrays of a file."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_vit.layers.resize import resize_distances, resize_patch_kernel
from keras_vit.models.config import ViTConfig
from keras_vit.weights.renormalize import (
    can_renormalize,
    constant_of,
    renormalize_kernel,
)
from keras_vit.weights.resize import (
    adapt_channels,
    resize_positions,
)
from keras_vit.weights.source import POSITION_TABLE, Source
from keras_vit.weights.stored_parts import whole_shape

PATCHES = "patch_encoder/kernel"
PATCH_BIAS = "patch_encoder/bias"
ROOT = "stem/root_conv/kernel"


class Transfer(NamedTuple):
    """The computation of one weight of the model from the file.

    Args:
        path: Path of the weight.
        names: Pairs of a name in the file and the index in a stacked array, or
            None for the whole array. None in place of a pair is a bias that
            the file does not contain; it is zero.
        make: Computes the weight from the arrays.
        resized: Descriptions of the resizes, for the report.
    """

    path: str
    names: tuple
    make: Callable[[list], np.ndarray]
    resized: tuple[str, ...] = ()


def make_transfer(
    source: Source,
    config: ViTConfig,
    path: str,
    shape: tuple,
    position_resize: str | None,
    patch_resize: str | None,
    renormalize: bool = False,
) -> Transfer:
    """Return the transfer of one weight.

    Args:
        source: The checkpoint.
        config: Configuration of the model.
        path: Path of the weight.
        shape: Shape of the weight in the model.
        position_resize: A key of RESIZES; None for the rule of the source.
        patch_resize: A key of RESIZES, or None to refuse other patches.
        renormalize: Whether to adapt the first layer to the normalisation of
            the model's images.

    Raises:
        ValueError: If the shape in the file does not fit.
    """
    method = position_resize or source.config.position_resize
    if path == POSITION_TABLE:
        return _transfer_positions(source, config, method)
    pair = source.preprocessing, config.preprocessing
    if not (renormalize and can_renormalize(pair[0], source.config, config)):
        pair = ()
    if path == PATCH_BIAS and (pair or path not in source.parts):
        return _transfer_patch_bias(source, shape, pair)
    parts = source.parts[path]
    is_token = path in _rows_of_tokens(config)
    if is_token and source.num_prefix_rows and not config.use_prefix_positions:
        return _transfer_prefix_token(source, config, path)
    stored, adapt, resized = whole_shape(parts), [], []
    if path.endswith("/table"):
        row = path, stored, method
        stored = _adapt_distances(source, config, row, adapt, resized)
    if path in (PATCHES, ROOT):
        rule = patch_resize, pair
        stored = _adapt_kernel(source, path, shape, rule, adapt, resized)
    if stored != shape:
        raise ValueError(
            f"{source.stored(path)} is {stored} and the model has {shape}"
        )

    def make(arrays):
        weight = _join(parts, arrays)
        for function in adapt:
            weight = function(weight)
        return weight

    return Transfer(path, _names(source, path), make, tuple(resized))


def _adapt_kernel(source, path, shape, rule, adapt, resized) -> tuple:
    """Collect the functions that adapt a kernel of the first layers.

    Args:
        source: The checkpoint.
        path: Path of the weight.
        shape: Its shape in the model.
        rule: A key of RESIZES or None, and the preprocessing of source and
            model, if the kernel is to be renormalised.
        adapt: Receives functions of the kernel.
        resized: Receives their descriptions, for the report.

    Returns:
        The shape after them.
    """
    stored = whole_shape(source.parts[path])
    patch_resize, pair = rule
    if pair:
        adapt.append(lambda kernel: renormalize_kernel(kernel, *pair))
        names = " to ".join(repr(s.normalization) for s in pair)
        resized.append(f"{path}: normalisation {names}")
    is_first = path == ROOT or source.config.stem_stages is None
    if is_first and stored[2] != shape[2]:
        adapt.append(lambda kernel: adapt_channels(kernel, shape[2]))
        resized.append(f"{path}: {stored[2]} input channels to {shape[2]}")
        stored = (*stored[:2], shape[2], stored[3])
    if stored[:2] != shape[:2]:
        sizes = [f"{rows}x{columns}" for rows, columns, *_ in (stored, shape)]
        if patch_resize is None:
            raise ValueError(
                f"{source.stored(path)} has patches of {sizes[0]} and the "
                f"model of {sizes[1]}; pass `patch_resize=` to resize them"
            )
        adapt.append(lambda k: resize_patch_kernel(k, shape[0], patch_resize))
        resized.append(
            f"{path}: {sizes[0]} pixels to {sizes[1]} ({patch_resize})"
        )
        stored = (*shape[:2], *stored[2:])
    return stored


def _adapt_distances(source, config, row, adapt, resized) -> tuple:
    """Collect functions that adapt a distance table, see `_adapt_kernel`."""
    path, stored, method = row
    old, new = source.config.grid_size, config.grid_size
    if old == new:
        return stored
    adapt.append(lambda table: resize_distances(table, old, new, method))
    sizes = ["x".join(map(str, grid)) for grid in (old, new)]
    resized.append(f"{path}: {sizes[0]} patches to {sizes[1]} ({method})")
    counts = [(2 * h - 1) * (2 * w - 1) for h, w in (old, new)]
    return (stored[0] + counts[1] - counts[0], *stored[1:])


def _transfer_patch_bias(source, shape, pair) -> Transfer:
    """Return the transfer of the bias for images of another normalisation.

    Without a bias in the source, it is the constant alone, or zero.
    """
    if not pair:
        return make_zeros(PATCH_BIAS, shape)
    kernel, bias = source.parts[PATCHES], source.parts.get(PATCH_BIAS)

    def make(arrays):
        weight = _join(kernel, arrays[: len(kernel)])
        constant = constant_of(weight, *pair)
        return constant + (_join(bias, arrays[len(kernel) :]) if bias else 0)

    names = _names(source, PATCHES)
    names += _names(source, PATCH_BIAS) if bias else ()
    return Transfer(PATCH_BIAS, names, make)


def make_zeros(path: str, shape: tuple) -> Transfer:
    """Return the transfer of a weight that the source computes without.

    Args:
        path: Path of the weight.
        shape: Its shape in the model.
    """
    return Transfer(path, (), lambda arrays: np.zeros(shape, "float32"))


def _transfer_positions(source, config, method) -> Transfer:
    old_grid, new_grid = source.config.grid_size, config.grid_size
    num_patches = math.prod(old_grid)
    if source.config.width != config.width:
        raise ValueError(
            f"{source.stored(POSITION_TABLE)} has the width "
            f"{source.config.width} and the model {config.width}"
        )

    wanted = config.use_prefix_positions * config.num_prefix_tokens
    kept = min(wanted, source.num_prefix_rows)

    def make(arrays):
        table = arrays[0].reshape(-1, config.width)
        # Tokens without positions in the file get rows of zeros.
        no_rows = np.zeros((wanted - kept, config.width), table.dtype)
        table = np.concatenate([table[:kept], no_rows, table[-num_patches:]])
        return resize_positions(table, old_grid, new_grid, method)

    resized = ()
    if old_grid != new_grid:
        old, new = ("x".join(map(str, grid)) for grid in (old_grid, new_grid))
        resized = (f"{POSITION_TABLE}: {old} patches to {new} ({method})",)
    return Transfer(
        POSITION_TABLE, _names(source, POSITION_TABLE), make, resized
    )


def _transfer_prefix_token(source, config, path) -> Transfer:
    """Return the transfer of tokens, with their positions added.

    A model that adds positions to the patches alone has no rows for them.
    """
    first, count = _rows_of_tokens(source.config)[path]
    rows = range(first, min(first + count, source.num_prefix_rows))

    def make(arrays):
        tokens, table = arrays
        tokens = tokens.reshape(1, count, -1).copy()
        table = table.reshape(-1, config.width)
        tokens[0, : len(rows)] += table[rows]
        return tokens

    names = (*_names(source, path), *_names(source, POSITION_TABLE))
    return Transfer(path, names, make)


def _rows_of_tokens(config) -> dict[str, tuple[int, int]]:
    """Return the first position and the number of each kind of token."""
    found, first = {}, 0
    for path, count in (
        ("class_token/token", int(config.use_class_token)),
        ("distillation_token/token", int(config.use_distillation_token)),
        ("registers/token", config.num_registers),
    ):
        found[path] = (first, count)
        first += count
    return found


def _names(source, path):
    return tuple(source.names.get(part.name) for part in source.parts[path])


def _join(parts, arrays):
    """Return the weight whose parts are the arrays of the file."""
    pieces = [
        np.zeros(part.shape, "float32")
        if array is None
        else _in_rows(part.form.to_ours(array, part.shape))
        for part, array in zip(parts, arrays)
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1)


def _in_rows(array):
    """Return a transposed matrix in row order, copied block by block.

    A block fits into the cache, so this is twice as fast as a single copy.
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return array
    copy = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], 64):
        block = slice(start, start + 64)
        copy[:, block] = array[:, block]
    return copy
