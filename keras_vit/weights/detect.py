"""Detection of the family of LAYOUTS that a checkpoint belongs to."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from keras_vit.weights.containers import Checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.foreign_parts import foreign_format, foreign_parts
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
        wrapper: The prefix of the names in the file.
    """

    checkpoint: Checkpoint
    family: str
    layout: Layout
    dialect: str
    names: dict[str, tuple[str, Index]]
    ignored: tuple[str, ...]
    wrapper: str = ""

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
    _refuse_adapters(checkpoint)
    plain = _plain_names(checkpoint)
    family, wrapper = recognise(checkpoint.path, plain)
    layout = LAYOUTS[family]
    inside, ignored = _unwrap(plain, layout, wrapper)
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
    if wrapper.endswith("trunk."):
        # The projection of OpenCLIP has no bias, unlike a head of timm.
        optional = (*layout.optional_bias, "predictions")
        layout = layout._replace(optional_bias=optional)
    return Detected(
        checkpoint, family, layout, dialect, names, ignored, wrapper
    )


def _unstack(prepared, shapes, stacks):
    """Name the slices of arrays that contain the weights of all blocks."""
    for name, axis in stacks.items():
        shape = shapes.get(name, ())
        if len(shape) > axis:
            del prepared[name]
            for i in range(shape[axis]):
                index = (*[slice(None)] * axis, i)
                prepared[f"{name}.{i}"] = (name, index)


def recognise(path: str, names: Iterable[str]) -> tuple[str, str]:
    """Return the family of a checkpoint and the prefix of its names.

    Args:
        path: Path of the checkpoint, for the error.
        names: The names of its arrays.

    Raises:
        ValueError: If the names fit no family of LAYOUTS.
    """
    names, unread = list(names), {}
    if foreign := foreign_format(names):
        raise ValueError(f"{path} is {foreign}")
    for family, layout in LAYOUTS.items():
        allowed = re.compile(f"({'|'.join(map(re.escape, layout.wrappers))})*")
        found = {
            name.removesuffix(ending): None
            for name in names
            if name.endswith(layout.recognise)
            for ending in layout.recognise
            if name.endswith(ending)
        }
        for wrapper in sorted(
            found, key=lambda text: (bool(re.search(TRAINED, text)), len(text))
        ):
            unless = re.compile(re.escape(wrapper) + f"({layout.unless})")
            if any(map(unless.match, names)):
                continue
            if allowed.fullmatch(wrapper):
                return family, wrapper
            if wrapper.endswith("."):
                unread.setdefault(wrapper, layout.title)
    titles = ", ".join(layout.title for layout in LAYOUTS.values())
    shown = ", ".join(names[:8]) or "none at all"
    foreign = foreign_parts(names)
    hints = [
        f" Behind the prefix {wrapper!r} are names of {title}: save the "
        "arrays that have it without it, and without the others."
        for wrapper, title in list(unread.items())[:1]
    ]
    hints += [f" They show {', '.join(foreign)}."] if foreign else []
    raise ValueError(
        f"{path} is not a ViT of a known family ({titles}). "
        f"The names of its arrays are {shown}.{''.join(hints)}"
    )


def _refuse_adapters(checkpoint):
    """Raise a ValueError for the adapters that PEFT adds to a model."""
    for name in checkpoint.entries:
        if re.search(ADAPTERS, name):
            raise ValueError(
                f"{checkpoint.path} holds adapters of PEFT ({name}), such as "
                "LoRA, which are not merged with the weights. Call "
                "`merge_and_unload()` in PEFT, and save the model that it "
                "returns"
            )


def _plain_names(checkpoint) -> dict[str, str]:
    """Map names without the marks of compilers and trainers to the file's."""
    found = {}
    for raw in checkpoint.entries:
        name = re.sub(MARKS, "", raw)
        if name in found:
            raise ValueError(
                f"{name} is stored twice, as {found[name]} and as {raw}"
            )
        found[name] = raw
    return found


def _unwrap(plain, layout, wrapper):
    """Map the names without prefix to those in the file; return the rest."""
    inside, ignored = {}, []
    # OpenCLIP stores the head of a tower of timm beside it.
    beside = wrapper.removesuffix("trunk.") + "head."
    has_trunk = wrapper.endswith("trunk.")
    others = next((row for key, row in OTHERS.items() if key in wrapper), None)
    for name, raw in plain.items():
        if has_trunk and name.startswith(beside):
            inside[f"trunk_head.{name.removeprefix(beside)}"] = raw
            continue
        if re.match(LOSSES, name) or (others and re.match(others, name)):
            ignored.append(raw)
            continue
        if not name.startswith(wrapper) and (
            wrapper.endswith("/") or re.match(layout.ignore, name)
        ):
            # The training state is stored beside the parameters.
            ignored.append(raw)
            continue
        short = name.removeprefix(wrapper)
        if short in inside:
            raise ValueError(f"{short} is stored twice, once behind {wrapper}")
        inside[short] = raw
    return inside, ignored


def _dialect_of(layout, usual, name):
    """Return the dialect that turns `usual` into `name`, or None."""
    if name == usual:
        return None
    for key, dialect in layout.dialects.items():
        if rename(usual, dialect.changes) == name:
            return key
    return None


# What compilers and parallel training write into names, at any place.
MARKS = (
    r"(?<![^.])(_orig_mod|module|_fsdp_wrapped_module|"
    r"_checkpoint_wrapped_module)\."
)
LOSSES = r"(.*\.)?(\w*_?loss|criterion)\."
# Of two networks in a file, the one that follows the other is used: a prefix of
# the trained one, and by a prefix of the one that is read, those that are not.
TRAINED = r"(^|\.)(student|momentum_encoder|encoder)\."
OTHERS = {
    "base_encoder.": (  # MoCo v3.
        r"((model|state_dict)\.)*(momentum_encoder|predictor|"
        r"base_encoder\.head\.\d)\."
    ),
    "teacher.": r"((model|state_dict)\.)*student\.",
    "target_encoder.": r"((model|state_dict)\.)*(encoder|predictor)\.",
}
# Names of PEFT and of the same methods in other libraries.
ADAPTERS = (
    r"\.base_layer\.|\.modules_to_save\.|\blora_([AB]|up|down|mid)\b|"
    r"\blora_(embedding_[AB]|magnitude_vector)\b|\b(ia3_l|hada_w\d|lokr_w\d)\b|"
    r"^base_model\.model\."
)
