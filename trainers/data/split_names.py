"""Names of the default splits."""

from collections.abc import Container, Sequence

# The preferred one first.
TRAIN_SPLITS = ("train",)
EVAL_SPLITS = ("test", "validation", "val")


def find_split(splits: Container[str], candidates: Sequence[str]) -> str | None:
    """Return the first of `candidates` that is in `splits`, or None."""
    return next((split for split in candidates if split in splits), None)
