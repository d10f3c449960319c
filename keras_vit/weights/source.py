"""Source: a checkpoint whose family, configuration and arrays are known."""

import dataclasses
import math
import re
from typing import NamedTuple

from keras_vit.models.config import ViTConfig
from keras_vit.preprocessing.settings import Preprocessing
from keras_vit.weights.containers import Checkpoint, errors_name
from keras_vit.weights.detect import Detected, Index, detect
from keras_vit.weights.foreign_parts import foreign_parts
from keras_vit.weights.hints import find_hints
from keras_vit.weights.image_settings import (
    add_conditioner,
    find_preprocessing,
)
from keras_vit.weights.infer import infer
from keras_vit.weights.layouts import Layout
from keras_vit.weights.positions import NOTHING_KNOWN, Known
from keras_vit.weights.shapes import Shapes
from keras_vit.weights.stored_parts import Part, parts_of

POSITION_TABLE = "position_embedding/embedding"


class Source(NamedTuple):
    """A complete checkpoint; none of its arrays has been read.

    Args:
        detected: The checkpoint, its family and its names.
        config: Configuration of the model in the file.
        parts: The arrays of each weight of that model.
        num_prefix_rows: Number of rows of its position table before the
            patches.
        ignored: Names in the file that do not belong to weights of the model.
        notes: Assumptions, each with the argument that confirms or changes it.
        preprocessing: How the model reads images; None if it is unknown.
    """

    detected: Detected
    config: ViTConfig
    parts: dict[str, list[Part]]
    num_prefix_rows: int
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    preprocessing: Preprocessing | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The open file."""
        return self.detected.checkpoint

    @property
    def family(self) -> str:
        """The key of its layout in LAYOUTS."""
        return self.detected.family

    @property
    def layout(self) -> Layout:
        """The row of LAYOUTS."""
        return self.detected.layout

    @property
    def dialect(self) -> str:
        """The key of its dialect in the layout, "" for the usual one."""
        return self.detected.dialect

    @property
    def names(self) -> dict[str, tuple[str, Index]]:
        """The name in the file of each name of the layout, see `Detected`."""
        return self.detected.names

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the model."""
        return sum(
            math.prod(part.shape)
            for parts in self.parts.values()
            for part in parts
        )

    def stored(self, path: str) -> str:
        """Return the names in the file of a weight of the model.

        Args:
            path: Path of the weight.
        """
        names = self.names
        found = [names[p.name][0] for p in self.parts[path] if p.name in names]
        return ", ".join(found) or path


def identify(checkpoint: Checkpoint, known: Known = NOTHING_KNOWN) -> Source:
    """Return which model a checkpoint holds, from its names and shapes.

    Args:
        checkpoint: An open file.
        known: What the caller knows, for a file that does not show it.

    Raises:
        ValueError: If it is of no known family, or anything is missing, left
            over or of an unexpected shape; names all of it.
    """
    known.check()
    with errors_name(checkpoint.path):
        detected = detect(checkpoint)
        layout = detected.layout
        hints = _read_hints(detected, known.architecture)
        found = infer(Shapes(detected), hints, known)
        notes = found.notes + _check_head(hints, found.config, known)
        settings = find_preprocessing(checkpoint, layout, found.config)
        parts = parts_of(layout, found.config)
        unread = check_complete(
            detected, found.config, parts, found.open_questions
        )
        config = layout.settle(found.config, detected.read_ignored)
        if config.num_classes and hints.get("classifier_activation"):
            activation = hints["classifier_activation"]
            config = dataclasses.replace(
                config, classifier_activation=activation
            )
        if layout.conditioner:
            arrays = map(detected.read_ignored, layout.conditioner)
            settings = add_conditioner(settings, *arrays)
    ignored = (*detected.ignored, *unread)
    ends = (name.rpartition(".")[2] for name in ignored)
    resize = (
        hints.get("position_resize")
        or layout.resize_of({*detected.names, *ends})
        or layout.position_resize
    )
    config = dataclasses.replace(config, position_resize=resize)
    if settings is not None:
        config = dataclasses.replace(config, preprocessing=settings)
    return Source(
        detected,
        config,
        parts,
        found.num_prefix_rows,
        ignored,
        notes,
        settings,
    )


def _check_head(hints, config, known) -> tuple[str, ...]:
    """Return a note if a file lacks the head that its JSON states.

    Raises:
        ValueError: If the caller has not said that it may be missing.
    """
    stated = hints.get("stated_classes")
    if type(stated) is not int or stated < 1 or config.num_classes:
        return ()
    lacks = f"The file lacks the head of {stated} outputs that its JSON states"
    if "num_classes" not in known.fields:
        raise ValueError(
            f"{lacks}; pass `classes=0` for the features before it, or "
            "another number for a new head."
        )
    return (f"{lacks}.",) if known.fields["num_classes"] else ()


def _read_hints(detected, architecture):
    """Return the fields that the JSON beside a file states."""
    layout, described = detected.layout, detected.checkpoint.config
    if architecture is not None:
        if not layout.has_architectures:
            raise ValueError(
                f"{layout.title} has no names of architectures. Received: "
                f"architecture={architecture!r}"
            )
        described = {**described, "architecture": architecture}
    described = layout.describe(described)
    found, reasons = {}, []
    for read in (layout.read_hints, find_hints):
        try:
            found |= read(described)
        except ValueError as error:
            reasons.append(f"{str(error).rstrip('.')}.")
    if reasons:
        foreign = foreign_parts(
            name for name in detected.names if not layout.knows(name)
        )
        if foreign:
            reasons.append(f"Its arrays show {', '.join(foreign)}.")
        raise ValueError(" ".join(reasons))
    is_unused = not found.keys() & {"architecture", "is_of_transformers"}
    if architecture is not None and is_unused:
        raise ValueError(
            f"`architecture` must be the name of a ViT in {layout.title}, such "
            "as vit_base_patch16_224. Received: "
            f"architecture={architecture!r}"
        )
    return found


def check_complete(
    detected: Detected,
    config: ViTConfig,
    parts: dict[str, list[Part]],
    open_questions: tuple[str, ...] = (),
) -> list[str]:
    """Raise a ValueError that names all arrays that do not fit the model.

    Args:
        detected: The checkpoint.
        config: Configuration of the model.
        parts: The arrays of each weight of that model.
        open_questions: What the file does not show, each with the argument
            that settles it. They are a reason to refuse it as well.

    Returns:
        The arrays that the family's own code does not read.
    """
    expected = {part.name: part for row in parts.values() for part in row}
    unread = re.compile(detected.layout.unread(config))
    extra = [name for name in detected.names if name not in expected]
    # DINOv3 and Sapiens 2 without register tokens store none of them.
    empty = [n for n in extra if n.endswith(("register_tokens", "reg_token"))]
    empty = [name for name in empty if 0 in detected.shape(name)]
    unused = [n for n in extra if unread.match(n) or n in empty]
    left_over = [name for name in extra if name not in unused]
    problems = {
        "missing": _missing(detected, expected),
        "left over": dict.fromkeys(detected.names[n][0] for n in left_over),
        "of another type": _mistyped(detected, expected),
        "of another shape": _misshapen(detected, config, parts),
    }
    lines = [f"{key}: {', '.join(v)}." for key, v in problems.items() if v]
    if lines:
        foreign = foreign_parts(left_over) + _grouped_queries(detected, parts)
        if foreign:
            lines.append(f"It is a model with {', '.join(foreign)}.")
        start = f"is not a complete ViT of {detected.layout.title}. "
        lines[0] = start + lines[0]
        if left_over and detected.wrapper:
            lines.append(
                f"The model is read behind the prefix {detected.wrapper!r}; "
                "save the arrays of the model alone, without the prefix."
            )
    path = f"{detected.checkpoint.path}{'' if lines else ':'}"
    lines += open_questions
    if lines:
        raise ValueError(f"{path} {' '.join(lines)}")
    return [detected.names[name][0] for name in unused]


def _missing(detected, expected):
    missing = [name for name in expected if name not in detected.names]
    if detected.checkpoint.config.get("qkv_bias") is True:
        return missing
    groups = {}
    for name, part in expected.items():
        groups.setdefault(part.optional, []).append(name)
    # A model has either all biases of a group or none.
    required = set(groups.pop("", []))
    for names in groups.values():
        if not set(names) <= set(missing):
            required.update(names)
    return [name for name in missing if name in required]


def _mistyped(detected, expected):
    """Return the arrays of the model that hold no floats, with their types."""
    entries = detected.checkpoint.entries
    raw_names = [detected.names[n][0] for n in expected if n in detected.names]
    return [
        f"{raw} {entries[raw].dtype}, expected floats"
        for raw in dict.fromkeys(raw_names)
        if not entries[raw].is_float
    ]


def _misshapen(detected, config, parts):
    found = []
    for path, row in parts.items():
        for part in row:
            if part.name not in detected.names:
                continue
            raw, _ = detected.names[part.name]
            shape = detected.shape(part.name)
            wanted = part.shape_in_file(config.num_heads)
            # The rows of the table were already compared with the image size.
            if path != POSITION_TABLE and not _is_same(shape, wanted):
                found.append(f"{raw} {shape}, expected {wanted}")
    return found


def _grouped_queries(detected, parts):
    """Return a description of keys with fewer heads than queries, if any."""
    for path, row in parts.items():
        if path.endswith("/attention/qkv/kernel") and len(row) == 3:
            names = [part.name for part in row if part.name in detected.names]
            sizes = [math.prod(detected.shape(name)) for name in names]
            if len(sizes) == 3 and sizes[1] < sizes[0]:
                raw, _ = detected.names[names[1]]
                return [f"grouped queries ({raw})"]
    return []


def _is_same(shape, wanted):
    # For a time, Flax stored the scales of group norms as (1, 1, 1, C).
    if len(wanted) == 1 and set(shape[:-1]) == {1}:
        shape = shape[-1:]
    return shape == wanted
