"""Labels of images: one class each, several, or an answer for each pixel."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class LabelSet(NamedTuple):
    """The labels of an image that may have several.

    Args:
        present: Its classes, by name or by number.
        absent: Classes that it has not, if nobody said anything of the rest;
            None for all that it has not.
    """

    present: tuple
    absent: tuple | None = None


def renamed(label, function: Callable):
    """Return a label of either kind with a function applied to each class."""
    if not isinstance(label, LabelSet):
        return function(label)

    def rename(part):  # Two names may become one.
        return tuple(dict.fromkeys(map(function, part)))

    absent = label.absent
    return LabelSet(
        rename(label.present), None if absent is None else rename(absent)
    )


class LabelOptions(NamedTuple):
    """How the labels of a data set are read.

    Args:
        kind: "one" class an image, "several" labels, or "auto": what the data
            are. One of MAPS: an answer for each pixel.
        separator: What is between the labels in a cell of a table; None finds
            it.
        depth_unit: Metres of one step of depths; None for a millimetre in
            whole numbers of 16 bits and a metre in floats.
        max_depth: Metres; what is farther is unknown. None has no limit.
        is_whole: Whether all images are read, of one class too, so that none
            need to be set apart.
    """

    kind: str = "auto"
    separator: str | None = None
    depth_unit: float | None = None
    max_depth: float | None = None
    is_whole: bool = False

    @property
    def has_maps(self) -> bool:
        """Whether there is an answer for each pixel."""
        return self.kind in MAPS


# What is known of each pixel: its class, or its distance in metres.
SEGMENT, DEPTH = "segment", "depth"
MAPS = (SEGMENT, DEPTH)
AUTO = LabelOptions()
# The least probability of a label that is given.
DEFAULT_THRESHOLD = 0.5
# Between labels in a cell, the preferred one first.
SEPARATORS = ("|", ";", ",")
UNUSUAL_SEPARATORS = (" ", "/", "+", "&")
IS_LIST = re.compile(r"\[.*\]|\(.*\)|\{.*\}", re.DOTALL)
LIST_ITEM = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s,'"][^,]*)""")


def classes_of(label) -> tuple:
    """Return the classes that an image has, of either kind of label."""
    return label.present if isinstance(label, LabelSet) else (label,)


def named_classes(label) -> tuple:
    """Return the classes that a label names, also those that are absent."""
    if not isinstance(label, LabelSet):
        return (label,)
    return label.present + (label.absent or ())


def split_cells(cells: Iterable[str], separator: str | None) -> list[LabelSet]:
    """Return the labels in the cells of a column; an empty one has none.

    Cells may also be lists as Python or a database writes them, such as
    `['cat', 'dog']` or `{cat,dog}`.

    Args:
        cells: The cells.
        separator: See `LabelOptions`.

    Raises:
        ValueError: If there may be several separators, or another one.

    Example:
        >>> split_cells(["cat; dog", "", "cat"], None)[0].present
        ('cat', 'dog')
    """
    cells = list(cells)
    if separator is None:
        plain = [cell for cell in cells if not IS_LIST.fullmatch(cell)]
        separator = find_separator(plain) or SEPARATORS[0]
        parts = [
            ["".join(item) for item in LIST_ITEM.findall(cell[1:-1])]
            if IS_LIST.fullmatch(cell)
            else cell.split(separator)
            for cell in cells
        ]
    else:
        parts = [cell.split(separator) for cell in cells]
    return [
        LabelSet(tuple(dict.fromkeys(x.strip() for x in row if x.strip())))
        for row in parts
    ]


def find_separator(cells: Sequence[str]) -> str | None:
    """Return what separates labels in cells; None if nothing does.

    Raises:
        ValueError: If it may be one of several, or an unusual one: the parts
            are fewer than the cells that they combine to.
    """
    found = [s for s in SEPARATORS if any(s in cell for cell in cells)]
    if not found:
        whole = set(cells) - {""}
        for mark in UNUSUAL_SEPARATORS:
            parts = {x for cell in whole for x in cell.split(mark)} - {""}
            if len(parts) < len(whole):
                found = [mark, SEPARATORS[0]]
    if len(found) > 1:
        shown = next(c for c in cells if found[0] in c or found[1] in c)
        raise ValueError(
            "`label_separator` must be given: labels may be separated by "
            f"{' or '.join(map(repr, found))}. "
            f"Received: label_separator=None, a cell {shown!r}"
        )
    return found[0] if found else None


def merge_rows(
    rows: Iterable[tuple[str, str]], keys: Iterable
) -> list[tuple[str, LabelSet]]:
    """Return rows of which those of one key are one image of all their labels.

    Args:
        rows: (path, class) pairs.
        keys: What is equal for equal images, such as the path or the content.
    """
    merged = {}
    for (path, label), key in zip(rows, keys, strict=True):
        first, labels = merged.setdefault(key, (path, {}))
        labels.update(dict.fromkeys(classes_of(label)))
    return [(path, LabelSet(tuple(found))) for path, found in merged.values()]


def parse_goal(goal: str) -> float | None:
    """Return the precision that thresholds are chosen for; None for F1.

    Args:
        goal: "f1", or "precision:0.9".

    Raises:
        ValueError: If it is no such goal.
    """
    if goal == "f1":
        return None
    found = PRECISION_GOAL.fullmatch(goal)
    if not found or not float(found[1]):
        raise ValueError(
            "`threshold_goal` must be 'f1' or 'precision:P' with a P above 0 "
            "and at most 1, such as 'precision:0.9'. "
            f"Received: threshold_goal={goal!r}"
        )
    return float(found[1])


PRECISION_GOAL = re.compile(r"precision:(0?\.\d+|1(\.0*)?)")
