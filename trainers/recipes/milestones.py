"""The field of a recipe that lists the milestones of the steps schedule."""

from fractions import Fraction


def read_milestones(text: str) -> tuple[float, ...]:
    """Return the milestones as shares of the training.

    Args:
        text: Numbers or fractions, separated by commas.

    Raises:
        ValueError: If one is not a number, or they do not ascend from 0 to 1.

    Example:
        >>> read_milestones("1/4,0.5")
        (0.25, 0.5)
    """
    try:
        shares = tuple(float(Fraction(word)) for word in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            "`milestones` must be shares such as '0.3,0.6,0.9' or '1/3,2/3'. "
            f"Received: milestones={text!r}"
        ) from None
    ends = [0, *shares, 1]
    if not all(low < high for low, high in zip(ends, ends[1:])):
        raise ValueError(
            "`milestones` must ascend and lie between 0 and 1. "
            f"Received: milestones={text!r}"
        )
    return shares
