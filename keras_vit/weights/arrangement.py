"""The arrangement of arrays in a file: their names, stacked or joined."""

import re

import numpy as np

from keras_vit.weights.layouts import Dialect, rename
from keras_vit.weights.writers import Arrays


def to_dialect(arrays: Arrays, dialect: Dialect) -> Arrays:
    """Return arrays with the names and the stacks of a dialect.

    Args:
        arrays: Functions that compute the arrays, by name.
        dialect: The dialect.
    """
    arrays = {rename(n, dialect.changes): make for n, make in arrays.items()}
    if not dialect.stack:
        return arrays
    number, stack = dialect.stack
    blocks = {}
    for name in [name for name in arrays if re.search(number, name)]:
        stacked = re.sub(number, stack, name)
        blocks.setdefault(stacked, []).append(arrays.pop(name))
    return arrays | {name: _stacker(makes) for name, makes in blocks.items()}


def stack(arrays: Arrays, stacks: dict[str, int]) -> Arrays:
    """Return arrays, those of all blocks as one where the family has one.

    Args:
        arrays: Functions that compute the arrays, by name.
        stacks: The axis of the block in each such array, by name.
    """
    for name, axis in stacks.items():
        makes = [arrays.pop(n) for n in list(arrays) if n.startswith(name)]
        if makes:
            arrays[name] = _stacker(makes, axis)
    return arrays


def join(arrays: Arrays, joins: dict[str, tuple[str, ...]]) -> Arrays:
    """Return arrays, as one where the family stores several as one.

    Args:
        arrays: Functions that compute the arrays, by name.
        joins: The names of the arrays side by side, by that of the whole.
    """
    for name, parts in joins.items():
        if parts[0] in arrays:
            makes = [arrays.pop(part) for part in parts]
            arrays[name] = _joiner(makes)
    return arrays


def _joiner(makes):
    return lambda: np.concatenate([make() for make in makes])


def _stacker(makes, axis=0):
    return lambda: np.stack([make() for make in makes], axis)
