"""Names of the default splits."""

from collections.abc import Iterable, Sequence

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
    """Return the split that `candidates` name first, or None.

    Args:
        splits: The names that there are.
        candidates: Usual names of splits, the preferred one first.
    """
    by_meaning = {meaning_of(split): split for split in splits}
    by_meaning |= {split: split for split in splits}  # Exact names win.
    found = (by_meaning[name] for name in candidates if name in by_meaning)
    return next(found, None)
