"""Detection of the family of LAYOUTS that a checkpoint belongs to."""

import re
from typing import NamedTuple

import numpy as np

from keras_vit.weights.containers import Checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.foreign_parts import foreign_parts
from keras_vit.weights.layouts import Layout, rename

Index = int | tuple | None


class Detected(NamedTuple):
    """A checkpoint whose family is known.

    Args:
        checkpoint: The open file.
        family: Key of its layout in LAYOUTS.
        layout: The row of LAYOUTS, with the variants of the file.
        dialect: Key of its dialect in the layout, "" for the usual one.
        names: Maps each name in the layout to the name in the file and, if
            one array contains the weights of all blocks, the index in it: a
            number, or slices and a number for an axis behind the first.
        ignored: Names in the file that do not belong to weights of the model.
    """

    checkpoint: Checkpoint
    family: str
    layout: Layout
    dialect: str
    names: dict[str, tuple[str, Index]]
    ignored: tuple[str, ...]

    def shape(self, name: str) -> tuple:
        """Return the shape of an array, or of its slice of a stacked array.

        Args:
            name: Name in the layout.
        """
        stored, index = self.names[name]
        shape = self.checkpoint.entries[stored].shape
        if index is None:
            return shape
        return np.broadcast_to(np.float32(0), shape)[index].shape

    def read_ignored(self, name: str) -> np.ndarray | None:
        """Return an array that does not belong to weights, None without it.

        Args:
            name: The last part of its name.
        """
        for stored in self.ignored:
            if stored.rpartition(".")[2] == name:
                return self.checkpoint.read(stored)
        return None


def detect(checkpoint: Checkpoint) -> Detected:
    """Return the family of a checkpoint, and its names in the layout.

    Args:
        checkpoint: An open file.

    Raises:
        ValueError: If it does not belong to a family of LAYOUTS, or stores an
            array twice.
    """
    family, wrapper = recognise(checkpoint)
    layout = LAYOUTS[family]
    inside, ignored = _unwrap(checkpoint, layout, wrapper)
    shapes = {n: checkpoint.entries[raw].shape for n, raw in inside.items()}
    prepared = {name: (name, None) for name in shapes}
    if layout.prepare:
        prepared = layout.prepare(shapes)
    _unstack(prepared, shapes, layout.stacks)
    dialect = ""
    if any(index is not None for _, index in prepared.values()):
        rows = layout.dialects.items()
        dialect = next((key for key, row in rows if row.stack), "")
    names = {}
    for name, (stored, index) in prepared.items():
        raw = inside[stored]
        new = rename(name, layout.aliases)
        if re.match(layout.ignore, new):
            ignored.append(raw)
            continue
        if new in names:
            raise ValueError(
                f"{new} is stored twice, as {names[new][0]} and as {raw}"
            )
        names[new] = (raw, index)
        dialect = _dialect_of(layout, new, name) or dialect
    ignored = tuple(dict.fromkeys(ignored))
    layout = layout.of_file(names, checkpoint.config)
    return Detected(checkpoint, family, layout, dialect, names, ignored)


def _unstack(prepared, shapes, stacks):
    """Name the slices of arrays that contain the weights of all blocks."""
    for name, axis in stacks.items():
        shape = shapes.get(name, ())
        if len(shape) > axis:
            del prepared[name]
            for i in range(shape[axis]):
                index = (*[slice(None)] * axis, i)
                prepared[f"{name}.{i}"] = (name, index)


def recognise(checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the family of a checkpoint and the prefix of its names.

    Args:
        checkpoint: An open file.

    Raises:
        ValueError: If the names fit no family of LAYOUTS.
    """
    for family, layout in LAYOUTS.items():
        for wrapper in ("", *layout.wrappers):
            names = {wrapper + name for name in layout.recognise}
            unless = re.compile(re.escape(wrapper) + f"({layout.unless})")
            if names & checkpoint.entries.keys() and not any(
                map(unless.match, checkpoint.entries)
            ):
                return family, wrapper
    titles = ", ".join(layout.title for layout in LAYOUTS.values())
    shown = ", ".join(list(checkpoint.entries)[:8]) or "none at all"
    foreign = foreign_parts(checkpoint.entries)
    hint = f" They show {', '.join(foreign)}." if foreign else ""
    raise ValueError(
        f"{checkpoint.path} is not a ViT of a known family ({titles}). "
        f"The names of its arrays are {shown}.{hint}"
    )


def _unwrap(checkpoint, layout, wrapper):
    """Map the names without prefix to those in the file; return the rest."""
    inside, ignored = {}, []
    for name in checkpoint.entries:
        if not name.startswith(wrapper) and (
            wrapper.endswith("/") or re.match(layout.ignore, name)
        ):
            # The training state is stored beside the parameters.
            ignored.append(name)
            continue
        short = name.removeprefix(wrapper)
        if short in inside:
            raise ValueError(f"{short} is stored twice, once behind {wrapper}")
        inside[short] = name
    return inside, ignored


def _dialect_of(layout, usual, name):
    """Return the dialect that turns `usual` into `name`, or None."""
    if name == usual:
        return None
    for key, dialect in layout.dialects.items():
        if rename(usual, dialect.changes) == name:
            return key
    return None
