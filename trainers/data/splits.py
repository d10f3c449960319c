"""Splits of a data set and their slices, in the notation of TFDS.

TFDS, which is slow to import, is only imported where splits are resolved, so
that --help is fast.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence

if typing.TYPE_CHECKING:
    from tensorflow_datasets.core import SplitInfo

# Part of a split: its name, its first example and the one after its last.
Range = tuple[str, int, int]


def count_split(name: str, num_examples: int) -> "SplitInfo":
    """Return the TFDS description of a split, which resolves its slices."""
    import tensorflow_datasets as tfds

    return tfds.core.SplitInfo(
        name=name, shard_lengths=[num_examples], num_bytes=0
    )


def locate_split(
    dataset: str,
    splits: Mapping[str, "SplitInfo"],
    split: str | None,
    argument: str,
) -> list[Range]:
    """Return the ranges of examples that make up `split`.

    Args:
        dataset: Name of the data set.
        splits: All splits of the data set.
        split: A split in the notation of TFDS, as `train[:98%]+validation`.
        argument: Name of the argument that contains `split`, for errors.

    Raises:
        ValueError: If there is no such split, or it has no examples.
    """
    import tensorflow_datasets as tfds

    hint, parts = "no examples", []
    if split is None:
        hint = "it has no split of the usual name"
    try:
        if split is not None:
            spec = tfds.core.ReadInstruction.from_spec(split)
            parts = spec.to_absolute(splits)
    # TFDS raises a RecursionError for a split called "all".
    except (AssertionError, ValueError, RecursionError) as error:
        hint = str(error).strip().partition("\n")[0]
    ranges = []
    for part in parts:
        size = splits[part.splitname].num_examples
        first, last, _ = slice(part.from_, part.to).indices(size)
        if first < last:
            ranges.append((part.splitname, first, last))
    if not ranges:
        raise ValueError(
            f"`{argument}` must name examples of dataset={dataset!r}, which "
            f"has {', '.join(splits)}. Parts are written as 'train[:98%]'. "
            f"Received: {argument}={split!r} ({hint})"
        )
    return ranges


def cut_ranges(
    ranges: Sequence[Range], part: int, num_parts: int
) -> list[Range]:
    """Return one of `num_parts` consecutive parts of some ranges.

    The lengths of the parts differ by at most one.
    """
    size = count_examples(ranges)
    start, stop = (size * p // num_parts for p in (part, part + 1))
    return take_ranges(ranges, start, stop)


def count_examples(ranges: Sequence[Range]) -> int:
    """Return the number of examples in some ranges."""
    return sum(last - first for _, first, last in ranges)


def take_ranges(ranges: Sequence[Range], start: int, stop: int) -> list[Range]:
    """Return the ranges of the examples from `start` to before `stop`.

    Args:
        ranges: The ranges, whose examples are counted from 0 in this order.
        start: The first example.
        stop: The one after the last.
    """
    found, passed = [], 0
    for name, first, last in ranges:
        low = max(first, first + start - passed)
        high = min(last, first + stop - passed)
        passed += last - first
        if low < high:
            found.append((name, low, high))
    return found


def format_ranges(ranges: Sequence[Range]) -> str:
    """Return some ranges in the notation of TFDS.

    Example:
        >>> format_ranges([("train", 0, 800), ("validation", 0, 200)])
        'train[0:800]+validation[0:200]'
    """
    return "+".join(f"{name}[{first}:{last}]" for name, first, last in ranges)


# The preferred one first.
TRAIN_SPLITS = ("train",)
EVAL_SPLITS = ("test", "validation", "val")
KNOWN_SPLITS = TRAIN_SPLITS + EVAL_SPLITS
OTHER_NAMES = {
    "training": "train",
    "training_set": "train",
    "testing": "test",
    "test_set": "test",
    "valid": "validation",
    "dev": "validation",
}


def meaning_of(split: str) -> str:
    """Return the usual name of a split.

    Example:
        >>> meaning_of("Training"), meaning_of("val"), meaning_of("fold_1")
        ('train', 'val', 'fold_1')
    """
    name = split.lower().replace("-", "_")
    return OTHER_NAMES.get(name, name)


def find_split(splits: Iterable[str], candidates: Sequence[str]) -> str | None:
    """Return the split that `candidates` name first, or None."""
    by_meaning = {meaning_of(split): split for split in splits}
    by_meaning |= {split: split for split in splits}  # Exact names win.
    found = (by_meaning[name] for name in candidates if name in by_meaning)
    return next(found, None)
